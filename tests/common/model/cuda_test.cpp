// Compares stages on a GPU with stages on the CPU. Without a GPU, exits with 77, which CTest
// reports as skipped.
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sub.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <iostream>
#include <limits>
#include <mutex>
#include <thread>

#include "common/core/random.h"
#include "common/model/blocks.h"
#include "common/model/stage/stage.h"
#include "common/model/torch_tensor.h"
#include "common/run/device.h"

#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include "tests/support/codecs/device_codec_checks.h"

namespace cleave::test {
namespace {

// Limit of |a - b| / |b| after one step in fp32: GPU kernels sum in a different order.
constexpr double kTolerance = 1e-4;

ComputeDevice& gpu() {
  static ComputeDevice& device = openDevice("cuda");
  return device;
}

// Runs one action on the GPU and waits for it.
template <typename Function>
auto onGpu(const Function& function) {
  std::mutex mutex;
  std::condition_variable changed;
  bool isDone = false;
  gpu().queue()->begin();
  auto result = function();
  const DeviceQueue::Seconds seconds = gpu().queue()->end([&] {
    const std::lock_guard lock(mutex);
    isDone = true;
    changed.notify_all();
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return isDone; });
  CHECK(seconds() >= 0);
  return result;
}

at::Tensor randomTensor(const Shape& shape, std::uint64_t number) {
  at::Tensor tensor = at::empty(shape);
  fillNormal(randomKey(3, "tensor", {number}),
             {tensor.mutable_data_ptr<float>(), static_cast<std::size_t>(tensor.numel())});
  return canonical(tensor, cutOrder(shape.size()));
}

double relativeDifference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor exact = b.cpu().to(at::kDouble);
  return at::sub(a.cpu().to(at::kDouble), exact).norm().item<double>() /
         exact.norm().item<double>();
}

StageOptions optionsOf(const std::string& model, const Shape& sample) {
  StageOptions options;
  options.model = {model, {}, sample, 10};
  const auto [cut0, cut1] = findModel(model).defaultCuts(options.model);
  options.cuts = {cut0, cut1};
  options.optimizer = {"adamw", {}};
  options.seed = 5;
  return options;
}

TEST_CASE("tensors are copied to the GPU and back unchanged, in either memory order") {
  for (const Shape& shape : {Shape{5, 7}, Shape{3, 4, 6, 5}, Shape{1, 1, 1, 1}, Shape{2, 0}}) {
    const at::Tensor host = randomTensor(shape, 1);
    const at::Tensor back = onGpu([&] {
      const at::Tensor there = gpu().toDevice(host);
      CHECK(there.is_cuda());
      CHECK(there.strides() == host.strides());
      return gpu().toHost(there);
    });
    CHECK(back.strides() == host.strides());
    CHECK(at::allclose(back, host, 0, 0));
  }
}

Payload onlyOf(TensorBundle bundle) { return std::move(bundle.at(0)); }

TEST_CASE("pinned memory is aligned") {
  const auto memory = gpu().hostMemory();
  std::byte* block = memory->allocate(100);
  CHECK(reinterpret_cast<std::uintptr_t>(block) % kAlignment == 0);
  memory->release(block);
}

TEST_CASE("an action is complete only after the kernels that follow its output") {
  const at::Tensor input = randomTensor({2048, 2048}, 1);
  for (int repetition = 0; repetition < 20; ++repetition) {
    // onGpu() reads the action's duration, which fails if kernels are still running.
    onGpu([&] {
      at::Tensor product = gpu().toDevice(input);
      const at::Tensor output = gpu().toHost(product.slice(0, 0, 1));
      for (int k = 0; k < 30; ++k) product = at::matmul(product, product);
      return output;
    });
  }
}

// Multiplies each value of a dense tensor by 1 +- 1.2e-7, an error of the size that rounding has in
// fp32.
at::Tensor withRoundingErrors(const at::Tensor& tensor) {
  auto* const values = tensor.mutable_data_ptr<float>();
  for (std::int64_t k = 0; k < tensor.numel(); ++k) {
    values[k] *= 1 + (k % 2 == 0 ? 1 : -1) * std::numeric_limits<float>::epsilon();
  }
  return tensor;
}

// GPU and CPU round differently. If that changes the sign of an input of ReLU, its gradient changes
// by its full size, and batch norm spreads this: in MobileNetV2, one rounding error per input
// changes the gradient by 0.4 %. Gradients may differ by a multiple of that.
TEST_CASE("a body on the GPU agrees with one on the CPU within the tolerance") {
  struct Case {
    const char* model;
    Shape sample;
  };
  for (const Case& one : {Case{"mlp", {1, 28, 28}}, Case{"small_cnn", {1, 28, 28}},
                          Case{"mobilenet_v2", {3, 56, 56}}}) {
    CAPTURE(one.model);
    const StageOptions options = optionsOf(one.model, one.sample);
    const std::vector<BlockSpec> blocks = findModel(one.model).blocks(options.model);
    BodyStage there(options, gpu());
    BodyStage here(options);
    BodyStage rounded(options);
    double tolerance = kTolerance;  // of gradients
    for (std::uint32_t i = 0; i < 2; ++i) {
      const MicroBatch at{Phase::train, 1, i, {2, 16}};
      const auto payload = [&](Flow flow) {
        const TensorSpec spec = flowSpec(blocks, options.cuts, flow, 8);
        return bundleOf(toPayload(randomTensor(spec.shape, 10 * i + flowNumber(flow)), spec.order));
      };
      const at::Tensor output =
          toTensor(onGpu([&] { return onlyOf(there.forward(at, payload(activationAt(0)))); }));
      CHECK(relativeDifference(
                output, toTensor(onlyOf(here.forward(at, payload(activationAt(0)))))) < kTolerance);
      const at::Tensor gradient =
          toTensor(onGpu([&] { return onlyOf(there.backward(at, payload(gradientAt(1)))); }));
      const at::Tensor exact = toTensor(onlyOf(here.backward(at, payload(gradientAt(1)))));
      const TensorSpec spec = flowSpec(blocks, options.cuts, activationAt(0), 8);
      const at::Tensor input =
          withRoundingErrors(randomTensor(spec.shape, 10 * i + flowNumber(activationAt(0))));
      rounded.forward(at, bundleOf(toPayload(input, spec.order)));
      const double sensitivity =
          relativeDifference(toTensor(onlyOf(rounded.backward(at, payload(gradientAt(1))))), exact);
      tolerance = std::max(tolerance, 4 * sensitivity);
      CAPTURE(sensitivity);
      CHECK(relativeDifference(gradient, exact) < tolerance);
    }
    const GradientReport expected = here.report();
    const GradientReport report = onGpu([&] { return there.report(); });
    CHECK(report.finite);
    CHECK(report.squareSum == Approx(expected.squareSum).epsilon(tolerance));
    const StepDecision decision{1, true, {1e-3}, 0.5, 1, false, {}};
    onGpu([&] {
      there.update(decision);
      return 0;
    });
    here.update(decision);
    const auto weights = fromSafetensors(there.exportWeights(), "GPU");
    const auto exact = fromSafetensors(here.exportWeights(), "CPU");
    REQUIRE(weights.size() == exact.size());
    for (std::size_t w = 0; w < weights.size(); ++w) {
      if (weights[w].tensor.scalar_type() != at::kFloat) continue;
      INFO(weights[w].name);
      // Adam divides by the gradient's magnitude. If the gradient is only noise, the step is noise
      // too, but it is bounded.
      CHECK(at::allclose(weights[w].tensor, exact[w].tensor, 1e-3, 2.5e-3));
    }
  }
}

TEST_CASE("repeated computations on the GPU are bit-identical") {
  const StageOptions options = optionsOf("mobilenet_v2", {3, 56, 56});
  const std::vector<BlockSpec> blocks = findModel("mobilenet_v2").blocks(options.model);
  std::vector<std::vector<std::byte>> files;
  for (int run = 0; run < 2; ++run) {
    BodyStage stage(options, gpu());
    const MicroBatch at{Phase::train, 1, 0, {1, 8}};
    for (const Flow flow : {activationAt(0), gradientAt(1)}) {
      const TensorSpec spec = flowSpec(blocks, options.cuts, flow, 8);
      onGpu([&] {
        Payload payload = toPayload(randomTensor(spec.shape, 1), spec.order);
        return onlyOf(flow == activationAt(0) ? stage.forward(at, bundleOf(std::move(payload)))
                                              : stage.backward(at, bundleOf(std::move(payload))));
      });
    }
    files.push_back(stage.exportGradients());
  }
  CHECK((files[0] == files[1]));
}

TEST_CASE("a client's stage trains on the GPU") {
  const StageOptions options = optionsOf("small_cnn", {1, 28, 28});
  ClientStage there(options, gpu());
  ClientStage here(options);
  const at::Tensor inputs = randomTensor({8, 1, 28, 28}, 1).contiguous();
  const std::vector<std::int64_t> labels = {0, 1, 2, 3, 4, 5, 6, 7};
  const BatchView view{{{static_cast<const std::byte*>(inputs.const_data_ptr()),
                         {DType::f32, {8, 1, 28, 28}, MemoryOrder::contiguous}},
                        {reinterpret_cast<const std::byte*>(labels.data()),
                         {DType::i64, {8}, MemoryOrder::contiguous}}}};
  const MicroBatch at{Phase::train, 1, 0, {1, 8}};
  const std::vector<BlockSpec> blocks = findModel("small_cnn").blocks(options.model);
  const TensorSpec spec = flowSpec(blocks, options.cuts, activationAt(1), 8);
  there.beginBatch(view);
  here.beginBatch(view);
  const at::Tensor head = toTensor(onGpu([&] { return onlyOf(there.headForward(at)); }));
  CHECK(relativeDifference(head, toTensor(onlyOf(here.headForward(at)))) < kTolerance);
  const auto activation1 = [&] {
    return bundleOf(toPayload(randomTensor(spec.shape, 2), spec.order));
  };
  const at::Tensor gradient =
      toTensor(onGpu([&] { return onlyOf(there.tailStep(at, activation1())); }));
  CHECK(relativeDifference(gradient, toTensor(onlyOf(here.tailStep(at, activation1())))) <
        kTolerance);
  CHECK(there.losses().at(0) == Approx(here.losses().at(0)).epsilon(kTolerance));
}

TEST_CASE("GPU codecs write and read the same bytes as the CPU codecs") {
  checkDeviceCodecs(*gpu().gpu(), {0, 1, 3, 65, 4095, 4096, 4097});
}

TEST_CASE("GPU codecs accept tensors of many tiles") {
  checkDeviceCodecs(*gpu().gpu(), {3 * device::kTileElements + 1037, 1000003});
}

TEST_CASE("GPU codecs in several threads do not affect each other") {
  const std::shared_ptr<const Codec> codec = makeCodec("topk:ratio=0.1");
  const auto gpuCodec = makeDeviceCodec(codec, *gpu().gpu());
  std::atomic<int> faults = 0;
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {
      const Tensor tensor = tensorOf(deviceValues(number, 100000));
      const DeviceTensor there(*gpu().gpu(), tensor.spec, tensor.bytes);
      const auto payloadOf = [&](const Codec& one, const TensorView& view) {
        CutContext cut;
        Bytes out(one.maxEncodedBytes(tensor.spec));
        out.resize(one.encode({7, kKey}, nullptr, cut, view, out).bytes);
        return out;
      };
      const Bytes expected = payloadOf(*codec, tensor.view());
      for (int round = 0; round < 50; ++round) {
        if (payloadOf(*gpuCodec, there.view()) != expected) ++faults;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(faults == 0);
}

// Follows a tensor through codec, body and codec in GPU memory, as a link does, and compares it
// with the path through host memory.
TEST_CASE("tensors stay on the GPU between a stage and its codecs") {
  StageOptions options = optionsOf("small_cnn", {1, 28, 28});
  BodyStage through(options, gpu());
  options.staysOnDevice = FlowMap<bool>(Place{}.flows(), true);
  BodyStage there(options, gpu());
  const std::vector<BlockSpec> blocks = findModel("small_cnn").blocks(options.model);
  const std::shared_ptr<const Codec> codec = makeCodec("block:bits=8");
  const auto gpuCodec = makeDeviceCodec(codec, *gpu().gpu());
  const MicroBatch at{Phase::train, 1, 0, {1, 8}};
  for (const Flow flow : {activationAt(0), gradientAt(1)}) {
    const TensorSpec spec = flowSpec(blocks, options.cuts, flow, 8);
    const CodecContext context{7, {at.phase, at.step, at.i, flow}};
    CutContext cut;
    const Payload input = toPayload(randomTensor(spec.shape, 1), spec.order);
    Bytes wire(codec->maxEncodedBytes(spec));
    wire.resize(codec->encode(context, nullptr, cut, input.view(), wire).bytes);
    // The path through host memory.
    Tensor decoded{spec, Bytes(spec.bytes())};
    codec->decode(context, nullptr, cut, wire, {decoded.bytes.data(), spec});
    const at::Tensor host = randomTensor(spec.shape, 1);
    std::memcpy(host.mutable_data_ptr(), decoded.bytes.data(), decoded.bytes.size());
    const Payload expected = onGpu([&] {
      Payload payload = toPayload(host, spec.order);
      return onlyOf(flow == activationAt(0) ? through.forward(at, bundleOf(std::move(payload)))
                                            : through.backward(at, bundleOf(std::move(payload))));
    });
    // The path within GPU memory.
    const std::shared_ptr<std::byte> memory = gpuCodec->allocate(spec.bytes());
    gpuCodec->decode(context, nullptr, cut, wire, {memory.get(), spec});
    const Payload output = onGpu([&] {
      Payload payload({memory.get(), spec, MemoryPlace::device}, memory);
      return onlyOf(flow == activationAt(0) ? there.forward(at, bundleOf(std::move(payload)))
                                            : there.backward(at, bundleOf(std::move(payload))));
    });
    REQUIRE(output.view().place == MemoryPlace::device);
    REQUIRE(expected.view().place == MemoryPlace::host);
    const TensorSpec& leaving = output.view().spec;
    CHECK(leaving == expected.view().spec);
    Bytes bytes(leaving.bytes());
    gpuCodec->copyToHost(output.view().data, bytes.size(), bytes.data());
    CHECK(std::memcmp(bytes.data(), expected.view().data, bytes.size()) == 0);
  }
}

}  // namespace
}  // namespace cleave::test

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  try {
    std::cout << "on " << cleave::openDevice("cuda").description() << std::endl;
  } catch (const cleave::UsageError& error) {
    std::cout << "skipped: " << error.what() << std::endl;
    return kSkipped;
  }
  return Catch::Session().run(argc, argv);
}
