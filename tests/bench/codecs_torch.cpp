// bench_codecs_torch: compares sort:q=6,s=2 and uniform:bits=8 with the same algorithms in plain
// LibTorch operations, as a program without its own kernels would implement them, encoding and
// decoding on one thread. The plain sort sorts all values to encode and all codes to decode. Rates
// are in fp32 bytes.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compression/registry.h"

namespace {

using namespace cleave;

struct QuantGrid {
  at::Tensor min, step;
};

struct Coded {
  at::Tensor codes;  // uint8, in the order of the values
  std::vector<QuantGrid> grids;
};

// One of the compared implementations.
class Coder {
 public:
  virtual ~Coder() = default;
  virtual void encode(const at::Tensor& values) = 0;
  virtual at::Tensor decode() = 0;  // decodes the most recently encoded tensor
};

at::Tensor roundToGrid(const at::Tensor& values, const QuantGrid& grid) {
  return ((values - grid.min) / grid.step)
      .nan_to_num_(0)
      .round_();  // gives 0 / 0 if all values are equal
}

class PlainSort : public Coder {
 public:
  void encode(const at::Tensor& values) override {
    const auto [sorted, order] = values.flatten().sort();
    coded_.grids.clear();
    std::vector<at::Tensor> codes;
    for (const at::Tensor& piece : sorted.tensor_split(kPieces)) {
      const QuantGrid& grid =
          coded_.grids.emplace_back(QuantGrid{piece[0], (piece[-1] - piece[0]) / (kCodes - 1)});
      const auto first = static_cast<std::int64_t>(codes.size()) * kCodes;
      codes.push_back((roundToGrid(piece, grid) + first).to(at::kByte));
    }
    coded_.codes = at::empty(values.numel(), at::kByte).scatter_(0, order, at::cat(codes));
    sizes_ = values.sizes().vec();
  }

  at::Tensor decode() override {
    const auto [sorted, order] = coded_.codes.sort();
    std::vector<at::Tensor> values;
    for (const at::Tensor& piece : sorted.tensor_split(kPieces)) {
      const QuantGrid& grid = coded_.grids[values.size()];
      const auto first = static_cast<std::int64_t>(values.size()) * kCodes;
      values.push_back((piece.to(at::kFloat) - first) * grid.step + grid.min);
    }
    return at::empty(coded_.codes.numel(), at::kFloat)
        .scatter_(0, order, at::cat(values))
        .view(sizes_);
  }

 private:
  static constexpr std::int64_t kPieces = 4;
  static constexpr std::int64_t kCodes = 64;  // codes per piece
  Coded coded_;
  std::vector<std::int64_t> sizes_;
};

class PlainUniform : public Coder {
 public:
  void encode(const at::Tensor& values) override {
    grid_.min = values.min();
    grid_.step = (values.max() - grid_.min) / 255;
    codes_ = roundToGrid(values, grid_).to(at::kByte);
  }
  at::Tensor decode() override { return codes_.to(at::kFloat) * grid_.step + grid_.min; }

 private:
  QuantGrid grid_;
  at::Tensor codes_;
};

class Ours : public Coder {
 public:
  explicit Ours(const std::string& spec) : codec_(makeCodec(spec)) {}

  void encode(const at::Tensor& values) override {
    spec_ = {DType::f32, values.sizes().vec()};
    buffer_.resize(codec_->maxEncodedBytes(spec_));
    CutContext cut;
    const auto* data = reinterpret_cast<const std::byte*>(values.const_data_ptr<float>());
    bytes_ = codec_->encode({1, kKey}, nullptr, cut, {data, spec_}, buffer_).bytes;
  }

  at::Tensor decode() override {
    if (!values_.defined()) values_ = at::empty(spec_.shape, at::kFloat);
    CutContext cut;
    codec_->decode({1, kKey}, nullptr, cut, std::span(buffer_).first(bytes_),
                   {reinterpret_cast<std::byte*>(values_.data_ptr<float>()), spec_});
    return values_;
  }

 private:
  static constexpr Key kKey{Phase::train, 1, 0, activationAt(0)};

  std::unique_ptr<Codec> codec_;
  TensorSpec spec_;
  std::vector<std::byte> buffer_;
  std::size_t bytes_ = 0;
  at::Tensor values_;
};

std::unique_ptr<Coder> makeCoder(const std::string& name) {
  if (name == "plain sort") return std::make_unique<PlainSort>();
  if (name == "plain uniform") return std::make_unique<PlainUniform>();
  return std::make_unique<Ours>(name);
}

void setRate(benchmark::State& state, const at::Tensor& values) {
  state.SetBytesProcessed(state.iterations() * values.numel() * 4);
}

void encode(benchmark::State& state, const at::Tensor& values, const std::string& name) {
  const std::unique_ptr<Coder> coder = makeCoder(name);
  for (auto _ : state) {
    coder->encode(values);
    benchmark::ClobberMemory();
  }
  setRate(state, values);
}

void decode(benchmark::State& state, const at::Tensor& values, const std::string& name) {
  const std::unique_ptr<Coder> coder = makeCoder(name);
  coder->encode(values);
  at::Tensor decoded;
  for (auto _ : state) {
    decoded = coder->decode();
    benchmark::ClobberMemory();
  }
  setRate(state, values);
  const double noise = (decoded - values).norm().item<double>();
  if (noise > 0) state.counters["snr_db"] = 20 * std::log10(values.norm().item<double>() / noise);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  at::set_num_threads(1);
  at::manual_seed(1);
  const std::vector<std::pair<std::string, at::Tensor>> samples = {
      {"normal[8,32,112,112]", at::randn({8, 32, 112, 112})},
      {"relu6[8,32,112,112]", at::randn({8, 32, 112, 112}).mul_(1.5).clamp_(0, 6)},
      {"normal[64,32,112,112]", at::randn({64, 32, 112, 112})}};
  for (const auto& [sample, values] : samples)
    for (const char* name : {"plain sort", "sort:q=6,s=2,select=sampled",
                             "sort:q=6,s=2,select=exact", "plain uniform", "uniform:bits=8"}) {
      const auto add = [&, tensor = values](const char* direction, auto function) {
        benchmark::RegisterBenchmark(
            (sample + "/" + name + "/" + direction).c_str(),
            [=](benchmark::State& state) { function(state, tensor, name); })
            ->Unit(benchmark::kMillisecond);
      };
      add("encode", encode);
      add("decode", decode);
    }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
