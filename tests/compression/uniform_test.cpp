// Compares `uniform` with a simple scalar implementation, and tests it at the limits of the number
// range.
#include <cmath>
#include <cstring>
#include <limits>

#include "common/core/random.h"
#include "compression/registry.h"
#include "tests/support/codecs/codec_tensors.h"

using namespace cleave;
using namespace cleave::test;
using Catch::Matchers::Contains;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kMin = std::numeric_limits<float>::denorm_min();

std::unique_ptr<Codec> uniform(int bits) {
  return makeCodec("uniform:bits=" + std::to_string(bits));
}

std::vector<float> normal(std::size_t elements) {
  std::vector<float> values(elements);
  fillNormal(randomKey(3, "uniform-test"), values);
  return values;
}

// Writes the format of compression/uniform.cpp, one bit at a time. Requires at least one element,
// and a range that fp32 can represent.
Bytes oracle(const std::vector<float>& values, int bits) {
  const int top = (1 << bits) - 1;
  float min = *std::min_element(values.begin(), values.end());
  if (min == 0) min = 0;
  const float max = *std::max_element(values.begin(), values.end());
  const float step = (max - min) / static_cast<float>(top);
  Bytes bytes(9 + (values.size() * static_cast<std::size_t>(bits) + 7) / 8);
  bytes[0] = std::byte{1};
  std::memcpy(&bytes[1], &min, 4);
  std::memcpy(&bytes[5], &step, 4);
  for (std::size_t j = 0; j < values.size(); ++j) {
    const int code = step == 0 ? 0 : static_cast<int>(std::nearbyint((values[j] - min) / step));
    for (int bit = 0; bit < bits; ++bit) {
      const std::size_t place = j * static_cast<std::size_t>(bits) + static_cast<std::size_t>(bit);
      if (code >> bit & 1) bytes[9 + place / 8] |= std::byte{1} << (place % 8);
    }
  }
  return bytes;
}

// The minimum and the step in a payload.
struct Header {
  float min, step;
};
Header headerOf(const Bytes& bytes) {
  Header header;
  std::memcpy(&header, &bytes[1], sizeof(header));
  return header;
}

std::vector<float> roundTrip(int bits, const std::vector<float>& values, DType dtype = DType::f32) {
  const Tensor tensor = tensorOf(values, dtype);
  const std::unique_ptr<Codec> codec = uniform(bits);
  return valuesOf(decode(*codec, encode(*codec, tensor), tensor.spec));
}

// Decodes a valid payload of 40 values, 8 bits each, whose minimum and step are replaced.
void decodeWithHeader(float min, float step, DType dtype = DType::f32) {
  const Tensor tensor = tensorOf(normal(40), dtype);
  const std::unique_ptr<Codec> codec = uniform(8);
  Bytes bytes = encode(*codec, tensor);
  REQUIRE(bytes[0] == std::byte{1});
  const Header header{min, step};
  std::memcpy(&bytes[1], &header, sizeof(header));
  decode(*codec, bytes, tensor.spec);
}

}  // namespace

TEST_CASE("a small tensor is encoded in the documented layout") {
  const Bytes bytes = encode(*uniform(2), tensorOf({2, 3, 4, 5, 5, 5, 2, 2, 2}));
  const std::vector<int> expected = {1, 0, 0, 0, 0x40, 0, 0, 0x80, 0x3f, 0xe4, 0x0f, 0x00};
  REQUIRE(bytes.size() == expected.size());
  for (std::size_t j = 0; j < bytes.size(); ++j)
    CHECK(std::to_integer<int>(bytes[j]) == expected[j]);
}

TEST_CASE("at every width the bytes match the oracle") {
  for (int bits = 1; bits <= 16; ++bits) {
    for (const std::size_t elements : {40, 1000, 1024, 1025, 3001}) {
      INFO(bits << " bits, " << elements << " elements");
      const std::vector<float> values = normal(elements);
      REQUIRE(encode(*uniform(bits), tensorOf(values)) == oracle(values, bits));
    }
  }
}

TEST_CASE("16-bit inputs are encoded as their fp32 values") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Tensor tensor = tensorOf(normal(1500), dtype);
    CHECK(encode(*uniform(5), tensor) == oracle(valuesOf(tensor), 5));
  }
}

TEST_CASE("ties are rounded to the even code") {
  // With the step 1, the codes of 0.5, 1.5, 2.5, … are 0, 2, 2, 4, 4, …
  std::vector<float> values = {0, 255};
  for (int j = 0; j < 255; ++j) values.push_back(static_cast<float>(j) + 0.5f);
  const std::vector<float> decoded = roundTrip(8, values);
  for (std::size_t j = 2; j < values.size(); ++j) {
    const std::size_t below = j - 2;
    CHECK(decoded[j] == static_cast<float>(below + below % 2));
  }
}

TEST_CASE("no value changes by more than half a step") {
  for (const float scale : {1.0f, 1e-30f, 1e30f}) {
    for (const int bits : {1, 3, 4, 8, 12, 16}) {
      std::vector<float> values = normal(2000);
      for (float& value : values) value = value * scale + scale;
      const double step = headerOf(encode(*uniform(bits), tensorOf(values))).step;
      const std::vector<float> decoded = roundTrip(bits, values);
      for (std::size_t j = 0; j < values.size(); ++j) {
        const double rounding = 4e-7 * (std::abs(values[j]) + scale);
        REQUIRE(std::abs(double{values[j]} - double{decoded[j]}) <= step / 2 + rounding);
      }
    }
  }
}

TEST_CASE("a constant is restored exactly") {
  for (const float constant : {0.0f, 0.1f, -7.5f, kLargest, -kLargest, kMin}) {
    const std::vector<float> values(100, constant);
    CHECK(headerOf(encode(*uniform(4), tensorOf(values))).step == 0);
    CHECK(roundTrip(4, values) == values);
  }
}

TEST_CASE("negative zero becomes zero") {
  for (const float max : {0.0f, -0.0f, 1.0f}) {
    std::vector<float> values(50, -0.0f);
    values[20] = max;
    CHECK_FALSE(std::signbit(headerOf(encode(*uniform(8), tensorOf(values))).min));
    for (const float value : roundTrip(8, values)) CHECK_FALSE(std::signbit(value));
  }
}

TEST_CASE("a tensor without elements has no payload") {
  CHECK(encode(*uniform(8), tensorOf({})).empty());
}

TEST_CASE("a tensor that packing would not shorten is sent unchanged") {
  const Tensor tensor = tensorOf({0.1f, -0.0f});
  const Bytes bytes = encode(*uniform(8), tensor);
  CHECK(bytes.size() == 9);  // packed, it would have 11 bytes
  CHECK(bytes[0] == std::byte{0});
  CHECK(decode(*uniform(8), bytes, tensor.spec).bytes == tensor.bytes);
  CHECK(encode(*uniform(8), tensorOf({1, 2, 3}))[0] == std::byte{1});
  // 16 bits cannot shorten a 16-bit type.
  CHECK(encode(*uniform(16), tensorOf(normal(500), DType::f16))[0] == std::byte{0});
}

TEST_CASE("values whose range overflows fp32 stay finite, with an error of at most half a step") {
  for (const int bits : {2, 3, 8, 12, 16}) {
    std::vector<float> values = normal(300);
    for (float& value : values) value *= 8e37f;
    values[7] = -kLargest;
    values[8] = kLargest;
    values[9] = 0;
    const std::vector<float> decoded = roundTrip(bits, values);
    const double step = headerOf(encode(*uniform(bits), tensorOf(values))).step;
    CHECK(step == Approx(2.0 * kLargest / ((1 << bits) - 1)));
    for (std::size_t j = 0; j < values.size(); ++j) {
      REQUIRE(std::isfinite(decoded[j]));
      REQUIRE(std::abs(double{values[j]} - double{decoded[j]}) <= step / 2 * (1 + 1e-4));
    }
  }
}

TEST_CASE("1-bit values stay finite if their range is wider than any fp32 step") {
  std::vector<float> values(100, kLargest);
  values[3] = -kLargest;
  const std::vector<float> decoded = roundTrip(1, values);
  CHECK(decoded[3] == -kLargest);
  CHECK(decoded[4] == 0);
}

TEST_CASE("rounding of the step moves no value beyond the largest float") {
  for (int bits = 1; bits <= 16; ++bits) {
    for (const float min : {0.0f, 1e38f, -1.0f, -kLargest / 3}) {
      std::vector<float> values(100, kLargest);
      values[3] = min;
      for (const float value : roundTrip(bits, values)) REQUIRE(std::isfinite(value));
    }
  }
}

TEST_CASE("the largest f16 and bf16 stay finite") {
  for (int bits = 1; bits <= 15; ++bits) {
    for (const auto& [dtype, largest] :
         {std::pair(DType::f16, 65504.0f), std::pair(DType::bf16, 0x1.fep127f)}) {
      std::vector<float> values(100, largest);
      values[3] = 0.3f;
      values[4] = -largest / 7;
      for (const float value : roundTrip(bits, values, dtype)) REQUIRE(std::isfinite(value));
    }
  }
}

TEST_CASE("ranges of a few subnormal numbers do not overflow the codes") {
  for (const int bits : {1, 4, 8}) {
    for (int range = 1; range < 600; ++range) {
      std::vector<float> values(40, 0.0f);
      values[1] = kMin * static_cast<float>(range);
      const float decoded = roundTrip(bits, values)[1];
      const int top = (1 << bits) - 1;
      // The rounding error of the step is at most half the smallest subnormal.
      REQUIRE(std::abs(double{decoded} - double{values[1]}) <= top * 0.5 * double{kMin});
    }
  }
}

TEST_CASE("a NaN or infinite min is refused") {
  CHECK_THROWS_AS(decodeWithHeader(std::nanf(""), 1), ProtocolError);
  CHECK_THROWS_AS(decodeWithHeader(-kInfinity, 1), ProtocolError);
}

TEST_CASE("a NaN, infinite or negative step is refused") {
  CHECK_THROWS_AS(decodeWithHeader(0, std::nanf("")), ProtocolError);
  CHECK_THROWS_AS(decodeWithHeader(0, kInfinity), ProtocolError);
  CHECK_THROWS_AS(decodeWithHeader(0, -1), ProtocolError);
}

TEST_CASE("a grid that exceeds the range of the tensor's type is refused") {
  CHECK_NOTHROW(decodeWithHeader(0, kLargest / 256));
  CHECK_THROWS_AS(decodeWithHeader(0, kLargest / 254), ProtocolError);
  CHECK_NOTHROW(decodeWithHeader(-kLargest, kLargest / 254));
  CHECK_NOTHROW(decodeWithHeader(0, 256, DType::f16));
  CHECK_THROWS_AS(decodeWithHeader(0, 257, DType::f16), ProtocolError);
  CHECK_THROWS_AS(decodeWithHeader(-65520, 256, DType::f16), ProtocolError);
}

TEST_CASE("a format byte that does not match the tensor is refused") {
  const std::unique_ptr<Codec> codec = uniform(8);
  for (const std::size_t elements : {1, 40}) {
    const Tensor tensor = tensorOf(normal(elements));
    Bytes bytes = encode(*codec, tensor);
    for (const int format : {elements == 1 ? 1 : 0, 2, 255}) {
      bytes[0] = static_cast<std::byte>(format);
      CHECK_THROWS_WITH(decode(*codec, bytes, tensor.spec),
                        Contains("format " + std::to_string(format)) && Contains("gradient/0"));
    }
  }
}
