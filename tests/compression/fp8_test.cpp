// Compares `fp8` with the definitions of the formats.
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

constexpr float kLargest = std::numeric_limits<float>::max();

struct Format {
  std::string spec;
  int mantissaBits, bias, max;
};
const std::vector<Format> kFormats = {{"fp8:format=e4m3", 3, 7, 0x7e},
                                      {"fp8:format=e5m2", 2, 15, 0x7b}};

double valueOf(const Format& format, int code) {
  const int exponent = code >> format.mantissaBits;
  const int mantissa = code & ((1 << format.mantissaBits) - 1);
  const int significand = exponent == 0 ? mantissa : mantissa | 1 << format.mantissaBits;
  return std::ldexp(significand, std::max(exponent, 1) - format.bias - format.mantissaBits);
}

}  // namespace

TEST_CASE("every finite code, scaled, encodes to itself and decodes to its value") {
  for (const Format& format : kFormats) {
    const std::unique_ptr<Codec> codec = makeCodec(format.spec);
    for (const int scale : {-100, -30, 0, 7, 100}) {
      std::vector<float> values;
      for (int code = 0; code <= format.max; ++code) {
        values.push_back(static_cast<float>(std::ldexp(valueOf(format, code), scale)));
        values.push_back(-values.back());
      }
      const Tensor tensor = tensorOf(values);
      const Bytes bytes = encode(*codec, tensor);
      REQUIRE(bytes.size() == 2 + values.size());
      CHECK(static_cast<std::int8_t>(bytes[1]) == scale);
      for (int code = 0; code <= format.max; ++code) {
        REQUIRE(std::to_integer<int>(bytes[2 + 2 * static_cast<std::size_t>(code)]) == code);
        REQUIRE(std::to_integer<int>(bytes[3 + 2 * static_cast<std::size_t>(code)]) ==
                (code | 0x80));
      }
      CHECK(decode(*codec, bytes, tensor.spec).bytes == tensor.bytes);
    }
  }
}

TEST_CASE("ties between two codes are rounded to even, other values to the nearest") {
  for (const Format& format : kFormats) {
    std::vector<float> values;
    for (int code = 0; code < format.max; ++code) {
      const auto tie = static_cast<float>((valueOf(format, code) + valueOf(format, code + 1)) / 2);
      values.insert(values.end(), {std::nextafter(tie, 0.0f), tie, std::nextafter(tie, kLargest)});
    }
    values.push_back(static_cast<float>(valueOf(format, format.max)));
    const Bytes bytes = encode(*makeCodec(format.spec), tensorOf(values));
    REQUIRE(bytes[1] == std::byte{0});
    for (int code = 0; code < format.max; ++code) {
      const std::size_t j = 2 + 3 * static_cast<std::size_t>(code);
      REQUIRE(std::to_integer<int>(bytes[j]) == code);
      REQUIRE(std::to_integer<int>(bytes[j + 1]) == code + code % 2);
      REQUIRE(std::to_integer<int>(bytes[j + 2]) == code + 1);
    }
  }
}

TEST_CASE("the scale puts a tensor's maximum into the format's upper powers of two") {
  for (const Format& format : kFormats) {
    const std::unique_ptr<Codec> codec = makeCodec(format.spec);
    for (const float max : {1.0f, 1.75f, 1.76f, 3.0f, 1e-30f, 1e30f, kLargest}) {
      const Tensor tensor = tensorOf(std::vector<float>(20, -max));
      const Bytes bytes = encode(*codec, tensor);
      const int code = std::to_integer<int>(bytes[2]) & 0x7f;
      CHECK(code <= format.max);
      CHECK(code >= format.max - (1 << format.mantissaBits));
      for (const float value : valuesOf(decode(*codec, bytes, tensor.spec)))
        REQUIRE(std::abs(value + max) <= max / static_cast<float>(2 << format.mantissaBits));
    }
  }
}

TEST_CASE("codes of NaN and infinity, and exponents out of range, are refused") {
  for (const Format& format : kFormats) {
    const std::unique_ptr<Codec> codec = makeCodec(format.spec);
    const Tensor tensor = tensorOf(std::vector<float>(50, 1.5f));
    const Bytes good = encode(*codec, tensor);
    for (int code = format.max + 1; code < 0x80; ++code) {
      for (const int sign : {0, 0x80}) {
        Bytes bytes = good;
        bytes[30] = static_cast<std::byte>(code | sign);
        CHECK_THROWS_WITH(decode(*codec, bytes, tensor.spec), Contains("not finite"));
      }
    }
    for (const int exponent : {-128, -127, 121, 127}) {
      Bytes bytes = good;
      bytes[1] = static_cast<std::byte>(exponent);
      CHECK_THROWS_WITH(decode(*codec, bytes, tensor.spec), Contains("exponent"));
    }
  }
}
