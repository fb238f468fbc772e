// Benchmarks the kernels and copies of GPU codecs. Compares them with a copy within GPU memory in
// the same run, and with the CPU codecs, which the GPU codecs replace.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/core/random.h"
#include "common/run/device.h"
#include "compression/device/gpu.h"
#include "compression/registry.h"

namespace {

using namespace cleave;
using Clock = std::chrono::steady_clock;

constexpr int kRounds = 20;

// The median seconds of a call.
double secondsOf(const std::function<void()>& function) {
  std::vector<double> all;
  for (int round = 0; round < kRounds + 2; ++round) {
    const auto start = Clock::now();
    function();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (round >= 2) all.push_back(seconds);  // the first two rounds allocate memory
  }
  std::nth_element(all.begin(), all.begin() + kRounds / 2, all.end());
  return all[kRounds / 2];
}

// Repeats the same work but copies payloads only the first time, so that mainly the kernels are
// timed. Data that a codec needs on the host to continue is always copied.
class KernelsOnly : public Gpu {
 public:
  explicit KernelsOnly(Gpu& gpu) : gpu_(gpu) {}
  // Call this before each repetition.
  void again() {
    isFirst_ = blocks_.empty();
    next_ = 0;
  }

  std::shared_ptr<std::byte> scratch(std::size_t bytes) override {
    if (isFirst_) blocks_.push_back(gpu_.scratch(bytes));
    return blocks_.at(next_++);
  }
  std::shared_ptr<std::byte> tensorMemory(std::size_t bytes) override {
    return gpu_.tensorMemory(bytes);
  }
  void copyIn(const std::byte* from, std::size_t bytes, std::byte* to_dev) override {
    if (isFirst_ || bytes <= kKnow) gpu_.copyIn(from, bytes, to_dev);
  }
  void copyOut(const std::byte* from_dev, std::size_t bytes, std::byte* to) override {
    if (isFirst_ || bytes <= kKnow) gpu_.copyOut(from_dev, bytes, to);
  }
  void clear(std::byte* at_dev, std::size_t bytes) override { gpu_.clear(at_dev, bytes); }
  void launch(const DeviceKernel& kernel) override { gpu_.launch(kernel); }
  void wait() override { gpu_.wait(); }

 private:
  static constexpr std::size_t kKnow = 4096;
  Gpu& gpu_;
  std::vector<std::shared_ptr<std::byte>> blocks_;
  std::size_t next_ = 0;
  bool isFirst_ = true;
};

// The speed of LibTorch's tensor copy, in bytes per second, read plus written.
double copyBandwidth(ComputeDevice& device, std::size_t bytes) {
  const auto options = at::TensorOptions().dtype(at::kByte).device(device.device());
  const at::Tensor from = at::empty({static_cast<std::int64_t>(bytes)}, options).zero_();
  const at::Tensor to = at::empty_like(from);
  std::vector<double> all;
  for (int round = 0; round < kRounds; ++round) {
    std::mutex mutex;
    std::condition_variable changed;
    bool isDone = false;
    device.queue()->begin();
    to.copy_(from);
    const DeviceQueue::Seconds seconds = device.queue()->end([&] {
      const std::lock_guard lock(mutex);
      isDone = true;
      changed.notify_all();
    });
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return isDone; });
    all.push_back(seconds());
  }
  std::nth_element(all.begin(), all.begin() + kRounds / 2, all.end());
  return 2 * static_cast<double>(bytes) / all[kRounds / 2];
}

struct Bench {
  ComputeDevice& device;
  BufferPool pool{BufferPool::kMaxRetained, device.hostMemory()};
  nlohmann::json rows = nlohmann::json::array();

  void run(std::int64_t samples) {
    const TensorSpec spec{DType::f32, {samples, 32, 112, 112}};
    Buffer values = pool.acquire(spec.bytes());
    fillNormal(randomKey(1, "activation"),
               {reinterpret_cast<float*>(values.data()), spec.elements()});
    Gpu& gpu = *device.gpu();
    const std::shared_ptr<std::byte> tensor = gpu.tensorMemory(spec.bytes());
    gpu.copyIn(values.data(), spec.bytes(), tensor.get());
    gpu.wait();
    const double bandwidth = copyBandwidth(device, spec.bytes());
    std::printf(
        "\n%s, normal values; a copy within the GPU's memory: %.0f GB/s, read and written\n",
        toString(spec).c_str(), bandwidth / 1e9);
    std::printf("%-28s %6s %10s %9s %10s %9s %9s %9s %9s %11s\n", "codec", "ratio", "encode us",
                "of copy", "decode us", "of copy", "out GB/s", "send us", "recv us", "host way us");
    for (const char* codec : {"block:bits=8", "block:bits=4", "block:bits=4,rounding=stochastic",
                              "uniform:bits=8", "sort:q=6,s=2", "topk:ratio=0.1", "fp16"})
      row(codec, spec, tensor.get(), bandwidth);
  }

  void row(const char* name, const TensorSpec& spec, std::byte* tensor, double bandwidth) {
    const std::shared_ptr<const Codec> codec = makeCodec(name);
    Gpu& gpu = *device.gpu();
    KernelsOnly encoding(gpu);
    KernelsOnly decoding(gpu);
    const auto gpuCodec = makeDeviceCodec(codec, gpu);
    const auto encoder = makeDeviceCodec(codec, encoding);
    const auto decoder = makeDeviceCodec(codec, decoding);
    const CodecContext context{1, {Phase::train, 1, 0, activationAt(1)}};
    const TensorView view{tensor, spec, MemoryPlace::device};
    const std::shared_ptr<std::byte> decoded = gpu.tensorMemory(spec.bytes());
    const MutableTensorView out{decoded.get(), spec};
    Buffer wire = pool.acquire(codec->maxEncodedBytes(spec));
    Buffer host = pool.acquire(spec.bytes());
    CutContext cut;
    std::size_t bytes = 0;
    const double send = secondsOf(
        [&] { bytes = gpuCodec->encode(context, nullptr, cut, view, wire.span()).bytes; });
    const std::span<const std::byte> payload = std::as_const(wire).span().first(bytes);
    const double receive =
        secondsOf([&] { gpuCodec->decode(context, nullptr, cut, payload, out); });
    const double decode = secondsOf([&] {
      decoding.again();
      decoder->decode(context, nullptr, cut, payload, out);
    });
    const double hostWay = secondsOf([&] {
      gpuCodec->copyToHost(tensor, spec.bytes(), host.data());
      codec->encode(context, nullptr, cut, {host.data(), spec}, wire.span());
    });
    const double copy = secondsOf([&] { gpuCodec->copyToHost(tensor, bytes, wire.data()); });
    const double encode = secondsOf([&] {
      encoding.again();
      encoder->encode(context, nullptr, cut, view, wire.span());
    });
    const auto moved = static_cast<double>(spec.bytes() + bytes);
    const double ratio = static_cast<double>(bytes) / static_cast<double>(spec.bytes());
    const double encodeShare = moved / encode / bandwidth;
    const double decodeShare = moved / decode / bandwidth;
    const double copyRate = static_cast<double>(bytes) / copy;
    std::printf("%-28s %6.3f %10.1f %8.0f%% %10.1f %8.0f%% %9.1f %9.1f %9.1f %11.1f\n", name, ratio,
                encode * 1e6, 100 * encodeShare, decode * 1e6, 100 * decodeShare, copyRate / 1e9,
                send * 1e6, receive * 1e6, hostWay * 1e6);
    rows.push_back({{"codec", name},
                    {"shape", spec.shape},
                    {"ratio", ratio},
                    {"encode_seconds", encode},
                    {"encode_of_copy", encodeShare},
                    {"decode_seconds", decode},
                    {"decode_of_copy", decodeShare},
                    {"copy_out_bytes_per_second", copyRate},
                    {"send_seconds", send},
                    {"receive_seconds", receive},
                    {"host_way_seconds", hostWay},
                    {"copy_within_bytes_per_second", bandwidth}});
  }
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Compares codecs on a GPU with a copy within its memory", "bench_gpu_codecs"};
  std::string name = "cuda";
  std::string json;
  app.add_option("--device", name, "cuda or cuda:N")->capture_default_str();
  app.add_option("--json", json, "Writes the figures to this file");
  app.footer(
      "encode, decode: the kernels and the wait for them, without copying the payload; of copy:\n"
      "bytes of tensor and payload per second, divided by the rate of a copy; out: copying the\n"
      "payload to pinned memory; send, recv: all of these; host way: copying the tensor to the\n"
      "host and encoding it there.");
  CLI11_PARSE(app, argc, argv);
  try {
    Bench bench{openDevice(name)};
    if (bench.device.gpu() == nullptr) throw std::runtime_error(name + " is not a GPU");
    std::printf("on %s\n", bench.device.description().c_str());
    bench.run(8);
    bench.run(256);
    if (!json.empty()) std::ofstream(json) << bench.rows.dump(2) << '\n';
  } catch (const std::exception& error) {
    std::cerr << "bench_gpu_codecs: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
