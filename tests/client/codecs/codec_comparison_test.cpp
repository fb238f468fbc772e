#include "client/codecs/codec_comparison.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>

#include "common/core/random.h"
#include "compression/registry.h"

using namespace cleave;

namespace {

constexpr std::int64_t kRows = 512, kFeatures = 64;

// [rows, features] of normal values; `scale` multiplies those of a row and a feature.
SampleTensor normalTensor(
    const std::function<float(std::int64_t row, std::int64_t feature)>& scale) {
  SampleTensor tensor{{DType::f32, {kRows, kFeatures}}, {}};
  tensor.values.resize(tensor.spec.elements());
  fillNormal(randomKey(1, "codec-comparison-test"), tensor.values);
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t feature = 0; feature < kFeatures; ++feature) {
      tensor.values[static_cast<std::size_t>(row * kFeatures + feature)] *= scale(row, feature);
    }
  }
  return tensor;
}

// A power of 4 between 1 and 1024, not in their order.
float powerOf4(std::int64_t number) {
  return std::ldexp(1.F, static_cast<int>(5 * number % 6) * 2);
}

SampleTensor scaledRows() {
  return normalTensor([](std::int64_t row, std::int64_t) { return powerOf4(row); });
}
SampleTensor scaledFeatures() {
  return normalTensor([](std::int64_t, std::int64_t feature) { return powerOf4(feature); });
}

std::string chosen(const std::string& spec, const SampleTensor& tensor) {
  return leastNoisy(compareCodecs(spec, {&tensor})).codec.text;
}

TEST_CASE("compared codecs send at most two bytes more") {
  for (const char* spec : {"block:bits=4", "block:bits=2"}) {
    const std::vector<std::string> all = codecsLike(spec);
    REQUIRE(all.size() == 5);
    CHECK(all.front() == spec);
    for (const std::vector<std::int64_t>& shape : std::vector<std::vector<std::int64_t>>{
             {512, 64}, {16, 10}, {3, 7, 11, 5}, {1000}, {4, 1}}) {
      const TensorSpec tensor{DType::f32, shape};
      const std::size_t max = makeCodec(spec)->maxEncodedBytes(tensor) + 2;
      for (const std::string& each : all) {
        INFO(each << " of " << toString(tensor));
        CHECK(makeCodec(each)->maxEncodedBytes(tensor) <= max);
        CHECK(makeCodec(each)->spec() == each);
      }
    }
  }
  for (const char* spec : {"none", "block:bits=8", "bf16", "block:bits=4,header=fp16"}) {
    CHECK(codecsLike(spec) == std::vector<std::string>{spec});
  }
}

TEST_CASE("the codec with the highest SNR is chosen") {
  const SampleTensor rows = scaledRows();
  const SampleTensor features = scaledFeatures();
  CHECK(chosen("block:bits=4", rows) == "adaptive:bits=3.9375");
  CHECK(chosen("block:bits=2", rows) == "adaptive:bits=1.9375");
  CHECK(chosen("block:bits=4", features) == "channels(adaptive:bits=3.9375)");
  for (const SampleTensor* tensor : {&rows, &features}) {
    const std::vector<CodecSnr> compared = compareCodecs("block:bits=4", {tensor});
    REQUIRE(compared.size() == 5);
    for (const CodecSnr& each : compared) CHECK(leastNoisy(compared).snrDb >= each.snrDb);
    CHECK(leastNoisy(compared).snrDb > compared.front().snrDb + 6);
  }
}

TEST_CASE("block is kept if no other codec is one dB better") {
  CHECK(leastNoisy({{{"a"}, 10}, {{"b"}, 10.9}, {{"c"}, 5}}).codec.text == "a");
  CHECK(leastNoisy({{{"a"}, 10}, {{"b"}, 11.1}, {{"c"}, 11}}).codec.text == "b");
  constexpr double kExact = std::numeric_limits<double>::infinity();
  CHECK(leastNoisy({{{"a"}, kExact}, {{"b"}, kExact}}).codec.text == "a");
  const SampleTensor zero = normalTensor([](std::int64_t, std::int64_t) { return 0.F; });
  CHECK(chosen("block:bits=4", zero) == "block:bits=4");
}

TEST_CASE("of several tensors, the one with the lowest SNR counts") {
  const SampleTensor rows = scaledRows();
  const SampleTensor features = scaledFeatures();
  const std::vector<CodecSnr> both = compareCodecs("block:bits=4", {&rows, &features});
  const std::vector<CodecSnr> first = compareCodecs("block:bits=4", {&rows});
  const std::vector<CodecSnr> second = compareCodecs("block:bits=4", {&features});
  REQUIRE(both.size() == first.size());
  for (std::size_t j = 0; j < both.size(); ++j) {
    CHECK(both[j].snrDb == std::min(first[j].snrDb, second[j].snrDb));
  }
}

TEST_CASE("encoded bytes are those of all tensors") {
  const SampleTensor rows = scaledRows();
  const SampleTensor zero = normalTensor([](std::int64_t, std::int64_t) { return 0.F; });
  const auto block = makeCodec("block:bits=4");
  const std::size_t max = block->maxEncodedBytes(rows.spec);
  CHECK(encodedBytes(*block, {&rows, &zero}) == 2 * max);
  CHECK(encodedBytes(*block, {}) == 0);
  CHECK(encodedBytes(*makeCodec("rans(block:bits=4)"), {&zero}).value() < max / 10);
}

TEST_CASE("without finite tensors, nothing is compared") {
  CHECK(compareCodecs("block:bits=4", {}).empty());
  SampleTensor tensor = scaledRows();
  tensor.values[100] = std::numeric_limits<float>::quiet_NaN();
  CHECK(compareCodecs("block:bits=4", {&tensor}).empty());
  CHECK_FALSE(encodedBytes(*makeCodec("block:bits=4"), {&tensor}));
}

}  // namespace
