// Compares fp16 and bf16 with known bit patterns, and tests every tie.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "compression/registry.h"
#include "tests/support/codecs/codec_tensors.h"

using namespace cleave;
using namespace cleave::test;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

struct Format {
  const char* name;
  DType dtype;
  int mantissaBits;
  int minExponent;  // the smallest exponent of a normal number
  std::uint16_t infinity;
};
constexpr Format kFp16{"fp16", DType::f16, 10, -14, 0x7c00};
constexpr Format kBf16{"bf16", DType::bf16, 7, -126, 0x7f80};

std::uint16_t narrow(const Format& format, float value) {
  const Bytes bytes = encode(*makeCodec(format.name), tensorOf({value}));
  std::uint16_t bits;
  std::memcpy(&bits, bytes.data(), 2);
  return bits;
}

// The decoded values of all patterns from 0 to 0xffff.
std::vector<float> widenAll(const Format& format) {
  Bytes bytes(2 * 0x10000);
  for (std::size_t bits = 0; bits < 0x10000; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    std::memcpy(bytes.data() + 2 * bits, &pattern, 2);
  }
  return valuesOf(decode(*makeCodec(format.name), bytes, {DType::f32, {0x10000}}));
}

// The value of a finite pattern according to the format's definition.
double valueOf(const Format& format, std::uint16_t bits) {
  const int exponent = (bits & 0x7fff) >> format.mantissaBits;
  const int mantissa = bits & ((1 << format.mantissaBits) - 1);
  const int significand = exponent == 0 ? mantissa : mantissa | (1 << format.mantissaBits);
  const double magnitude =
      std::ldexp(significand, std::max(exponent, 1) - 1 + format.minExponent - format.mantissaBits);
  return bits & 0x8000 ? -magnitude : magnitude;
}

}  // namespace

TEST_CASE("known values have their known patterns in fp16") {
  CHECK(narrow(kFp16, 1.0f) == 0x3c00);
  CHECK(narrow(kFp16, -2.0f) == 0xc000);
  CHECK(narrow(kFp16, 0.0f) == 0x0000);
  CHECK(narrow(kFp16, -0.0f) == 0x8000);
  CHECK(narrow(kFp16, 0.1f) == 0x2e66);
  CHECK(narrow(kFp16, 65504.0f) == 0x7bff);
  CHECK(narrow(kFp16, 65519.996f) == 0x7bff);
  CHECK(narrow(kFp16, 65520.0f) == 0x7c00);  // the tie rounds to infinity
  CHECK(narrow(kFp16, -kLargest) == 0xfc00);
  CHECK(narrow(kFp16, kInfinity) == 0x7c00);
  CHECK(narrow(kFp16, 0x1p-14f) == 0x0400);
  CHECK(narrow(kFp16, 0x1.ff8p-15f) == 0x03ff);  // the largest subnormal
  CHECK(narrow(kFp16, 0x1p-24f) == 0x0001);
  CHECK(narrow(kFp16, 0x1p-25f) == 0x0000);  // the tie rounds to zero
  CHECK(narrow(kFp16, -0x1.000002p-25f) == 0x8001);
  CHECK(narrow(kFp16, std::numeric_limits<float>::denorm_min()) == 0x0000);
}

TEST_CASE("known values have their known patterns in bf16") {
  CHECK(narrow(kBf16, 1.0f) == 0x3f80);
  CHECK(narrow(kBf16, -0.0f) == 0x8000);
  CHECK(narrow(kBf16, 1.00390625f) == 0x3f80);  // a tie that rounds down to even
  CHECK(narrow(kBf16, 1.01171875f) == 0x3f82);  // a tie that rounds up to even
  CHECK(narrow(kBf16, 3.14159265f) == 0x4049);
  CHECK(narrow(kBf16, kLargest) == 0x7f80);
  CHECK(narrow(kBf16, -kInfinity) == 0xff80);
  CHECK(narrow(kBf16, 0x1p-133f) == 0x0001);
  CHECK(narrow(kBf16, 0x1p-134f) == 0x0000);
}

TEST_CASE("NaN becomes a quiet NaN with its sign and the top bits of its payload") {
  const auto nan = [](std::uint32_t bits) { return std::bit_cast<float>(bits); };
  CHECK(narrow(kFp16, nan(0x7fc00000)) == 0x7e00);
  CHECK(narrow(kFp16, nan(0x7f800001)) == 0x7e00);  // a signalling NaN, whose payload is cut off
  CHECK(narrow(kFp16, nan(0xffffffff)) == 0xffff);
  CHECK(narrow(kFp16, nan(0x7fa02000)) == 0x7f01);
  CHECK(narrow(kBf16, nan(0x7fc00000)) == 0x7fc0);
  CHECK(narrow(kBf16, nan(0x7f800001)) == 0x7fc0);
  CHECK(narrow(kBf16, nan(0xffffffff)) == 0xffff);
  CHECK(narrow(kBf16, nan(0x7fa10000)) == 0x7fe1);
}

TEST_CASE("every 16-bit pattern decodes to its value and encodes back to itself") {
  for (const Format& format : {kFp16, kBf16}) {
    const std::vector<float> values = widenAll(format);
    const Bytes again = encode(*makeCodec(format.name), tensorOf(values));
    for (std::size_t bits = 0; bits < 0x10000; ++bits) {
      INFO(format.name << " " << bits);
      const auto pattern = static_cast<std::uint16_t>(bits);
      std::uint16_t encoded;
      std::memcpy(&encoded, again.data() + 2 * bits, 2);
      if ((bits & 0x7fff) > format.infinity) {
        REQUIRE(std::isnan(values[bits]));
        const int quiet = 1 << (format.mantissaBits - 1);
        REQUIRE(encoded == (pattern | quiet));
      } else {
        const bool infinite = (bits & 0x7fff) == format.infinity;
        REQUIRE(values[bits] == (infinite ? std::copysign(kInfinity, bits & 0x8000 ? -1.0f : 1.0f)
                                          : static_cast<float>(valueOf(format, pattern))));
        REQUIRE(std::signbit(values[bits]) == (bits >= 0x8000));
        REQUIRE(encoded == pattern);
      }
    }
  }
}

TEST_CASE("ties between neighbours are rounded to even, other values to the nearest") {
  for (const Format& format : {kFp16, kBf16}) {
    std::vector<float> values;
    for (std::uint16_t bits = 0; bits < format.infinity; ++bits) {
      // The neighbour above the largest finite value is the power of two that infinity's pattern
      // would represent if it were finite.
      const auto tie = static_cast<float>(
          (valueOf(format, bits) + valueOf(format, static_cast<std::uint16_t>(bits + 1))) / 2);
      values.insert(values.end(),
                    {std::nextafter(tie, 0.0f), tie, -tie, std::nextafter(tie, kInfinity)});
    }
    const Bytes bytes = encode(*makeCodec(format.name), tensorOf(values));
    const auto patternAt = [&](std::size_t j) {
      std::uint16_t bits;
      std::memcpy(&bits, bytes.data() + 2 * j, 2);
      return bits;
    };
    for (std::uint16_t bits = 0; bits < format.infinity; ++bits) {
      INFO(format.name << " " << bits);
      const std::size_t j = std::size_t{4} * bits;
      const int even = bits + (bits & 1);
      REQUIRE(patternAt(j) == bits);
      REQUIRE(patternAt(j + 1) == even);
      REQUIRE(patternAt(j + 2) == (even | 0x8000));
      REQUIRE(patternAt(j + 3) == bits + 1);
    }
  }
}

TEST_CASE("a tensor that already has the wire's type is copied") {
  for (const Format& format : {kFp16, kBf16}) {
    Tensor tensor = tensorOf({1, 2, 3}, format.dtype);
    const std::uint16_t signallingNaN = format.infinity + 1;
    std::memcpy(tensor.bytes.data() + 2, &signallingNaN, 2);
    const std::unique_ptr<Codec> codec = makeCodec(format.name);
    CHECK(encode(*codec, tensor) == tensor.bytes);
    CHECK(decode(*codec, tensor.bytes, tensor.spec).bytes == tensor.bytes);
  }
}

TEST_CASE("one 16-bit format can be sent as the other") {
  const Tensor tensor = tensorOf({1.0f, -0.5f, 1e20f}, DType::bf16);
  const std::unique_ptr<Codec> fp16 = makeCodec("fp16");
  const Bytes bytes = encode(*fp16, tensor);
  CHECK(bytes == encode(*fp16, tensorOf({1.0f, -0.5f, kInfinity})));
  CHECK(valuesOf(decode(*fp16, bytes, tensor.spec)) == std::vector<float>{1.0f, -0.5f, kInfinity});
}
