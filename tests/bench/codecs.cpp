// Benchmarks every codec: encoding and decoding on one thread (processor time) and on two (wall
// time), compared with upper bounds: reading and copying the tensor. There are three tensors: a
// micro-batch of MobileNetV2's first cut, which fits into the last-level cache and is half zeros
// after ReLU6; a gradient that fits only into main memory; and activations of a transformer with
// outliers. Rates are in fp32 bytes; `ratio` is the encoded bytes divided by the tensor's bytes.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/core/random.h"
#include "compression/kernels/kernels.h"
#include "compression/registry.h"

namespace {

using namespace cleave;

struct Sample {
  const char* name;
  TensorSpec spec;
  std::vector<float> values;

  TensorView view() const { return {reinterpret_cast<const std::byte*>(values.data()), spec}; }
};

// Normally distributed values with the same distribution in every channel, clamped to 0…6.
Sample activation() {
  Sample sample{"relu6[8,32,112,112]", {DType::f32, {8, 32, 112, 112}}, {}};
  sample.values.resize(sample.spec.elements());
  fillNormal(randomKey(1, "activation"), sample.values);
  for (float& value : sample.values) value = std::clamp(value * 1.5f, 0.0f, 6.0f);
  return sample;
}

// Normally distributed values with a different scale in each row. The tensor as a whole is
// heavy-tailed, like gradients.
Sample gradient() {
  Sample sample{"gradient[64,32,112,112]", {DType::f32, {64, 32, 112, 112}}, {}};
  sample.values.resize(sample.spec.elements());
  fillNormal(randomKey(2, "gradient"), sample.values);
  std::vector<float> scales(sample.values.size() / 112);
  fillNormal(randomKey(3, "scales"), scales);
  for (std::size_t row = 0; row < scales.size(); ++row) {
    const float scale = 1e-5f * std::exp(1.5f * scales[row]);
    for (std::size_t j = 0; j < 112; ++j) sample.values[row * 112 + j] *= scale;
  }
  return sample;
}

// Normally distributed values, of which 1 % of the features have 20 times the scale, as in large
// transformers (Dettmers et al., arXiv 2208.07339).
Sample outliers() {
  Sample sample{"outliers[8,128,768]", {DType::f32, {8, 128, 768}}, {}};
  sample.values.resize(sample.spec.elements());
  fillNormal(randomKey(4, "outliers"), sample.values);
  for (std::size_t j = 37; j < sample.values.size(); j += 96) sample.values[j] *= 20;
  return sample;
}

const Key kTrain{Phase::train, 1, 0, activationAt(0)};

void setRate(benchmark::State& state, const Sample& sample) {
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(sample.spec.bytes()));
}

void readOnly(benchmark::State& state, const Sample& sample) {
  for (auto _ : state)
    benchmark::DoNotOptimize(kernels::rangeOf(sample.values.data(), sample.values.size()));
  setRate(state, sample);
}

void copy(benchmark::State& state, const Sample& sample) {
  std::vector<float> out(sample.values.size());
  for (auto _ : state) {
    std::memcpy(out.data(), sample.values.data(), sample.spec.bytes());
    benchmark::ClobberMemory();
  }
  setRate(state, sample);
}

void encode(benchmark::State& state, const Sample& sample, const std::string& spec,
            ForkJoinPair* helper) {
  const std::unique_ptr<Codec> codec = makeCodec(spec);
  std::vector<std::byte> out(codec->maxEncodedBytes(sample.spec));
  std::size_t bytes = 0;
  for (auto _ : state) {
    CutContext cut;
    bytes = codec->encode({1, kTrain, helper}, nullptr, cut, sample.view(), out).bytes;
    benchmark::ClobberMemory();
  }
  setRate(state, sample);
  state.counters["ratio"] = static_cast<double>(bytes) / static_cast<double>(sample.spec.bytes());
}

void decode(benchmark::State& state, const Sample& sample, const std::string& spec,
            ForkJoinPair* helper) {
  const std::unique_ptr<Codec> codec = makeCodec(spec);
  std::vector<std::byte> bytes(codec->maxEncodedBytes(sample.spec));
  CutContext encodeCut;
  bytes.resize(codec->encode({1, kTrain}, nullptr, encodeCut, sample.view(), bytes).bytes);
  std::vector<float> out(sample.values.size());
  for (auto _ : state) {
    CutContext cut;
    codec->decode({1, kTrain, helper}, nullptr, cut, bytes,
                  {reinterpret_cast<std::byte*>(out.data()), sample.spec});
    benchmark::ClobberMemory();
  }
  setRate(state, sample);
  double signal = 0;
  double noise = 0;
  for (std::size_t j = 0; j < out.size(); ++j) {
    const double x = sample.values[j];
    const double difference = x - double{out[j]};
    signal += x * x;
    noise += difference * difference;
  }
  if (noise > 0) state.counters["snr_db"] = 10 * std::log10(signal / noise);
}

}  // namespace

// The remaining arguments are specs to measure in addition to the examples in the codec table.
int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  std::vector<std::string> specs;
  for (const CodecRow& row : codecTable()) specs.emplace_back(row.example);
  for (int j = 1; j < argc; ++j) specs.emplace_back(argv[j]);
  try {
    for (const std::string& spec : specs) makeCodec(spec);
  } catch (const Error& error) {
    std::fprintf(stderr, "bench_codecs: %s; %s\n", error.what(), error.hint().c_str());
    return 2;
  }
  ForkJoinPair helper;
  const std::vector<Sample> samples = {activation(), gradient(), outliers()};
  for (const Sample& sample : samples) {
    const std::string name = sample.name;
    const auto add = [&](const std::string& what, auto function, auto... more) {
      return benchmark::RegisterBenchmark((name + "/" + what).c_str(),
                                          [&sample, function, more...](benchmark::State& state) {
                                            function(state, sample, more...);
                                          })
          ->Unit(benchmark::kMillisecond);
    };
    add("read", readOnly);
    add("memcpy", copy);
    for (const std::string& spec : specs) {
      add(spec + "/encode", encode, spec, nullptr);
      add(spec + "/decode", decode, spec, nullptr);
      add(spec + "/encode2", encode, spec, &helper)->UseRealTime();
      add(spec + "/decode2", decode, spec, &helper)->UseRealTime();
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
