// `block`: its exact layout, its accuracy, and the effect of scaling, rounding and the limits of
// the number range.
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

std::unique_ptr<Codec> block(const std::string& parameters) {
  return makeCodec("block:" + parameters);
}

std::vector<float> normal(std::size_t elements) {
  std::vector<float> values(elements);
  fillNormal(randomKey(3, "block-test"), values);
  return values;
}

std::vector<float> roundTrip(const std::string& parameters, const std::vector<float>& values,
                             DType dtype = DType::f32) {
  const Tensor tensor = tensorOf(values, dtype);
  const std::unique_ptr<Codec> codec = block(parameters);
  return valuesOf(decode(*codec, encode(*codec, tensor), tensor.spec));
}

std::uint16_t shortAt(const Bytes& bytes, std::size_t place) {
  std::uint16_t value;
  std::memcpy(&value, &bytes[place], sizeof value);
  return value;
}

Bytes encodeAt(const Codec& codec, const Tensor& tensor, std::uint64_t seed, const Key& key) {
  Bytes out(codec.maxEncodedBytes(tensor.spec));
  CutContext cut;
  codec.encode({seed, key}, nullptr, cut, tensor.view(), out);
  return out;
}

}  // namespace

TEST_CASE("a small block is encoded in the documented layout") {
  // 35 values: 0, 1, 2, 3, 0, 1, …; the second block has three of them.
  std::vector<float> values;
  for (int j = 0; j < 35; ++j) values.push_back(static_cast<float>(j % 4));
  const Bytes bytes = encode(*block("bits=2,size=32"), tensorOf(values));
  REQUIRE(bytes.size() == 1 + 2 * 4 + 9);
  CHECK(bytes[0] == std::byte{1});
  CHECK(shortAt(bytes, 1) == 0);       // the minimum, 0
  CHECK(shortAt(bytes, 3) == 0x3f80);  // the step, 1
  CHECK(shortAt(bytes, 5) == 0);
  CHECK(shortAt(bytes, 7) == 0x3f2b);  // 2/3, rounded up
  for (std::size_t j = 0; j < 8; ++j) CHECK(bytes[9 + j] == std::byte{0xe4});
  CHECK(bytes[17] == std::byte{0x34});  // the codes 0, 1, 3, and two padding bits
}

TEST_CASE("headers round the minimum down and the step up, so that every value is in the range") {
  const std::vector<float> values = normal(64 * 100);
  for (const std::string header : {"bf16", "fp16"}) {
    const Bytes bytes = encode(*block("bits=4,header=" + header), tensorOf(values));
    for (std::size_t b = 0; b < 100; ++b) {
      float grid[2];
      toFloat(&bytes[1 + 4 * b], header == "bf16" ? DType::bf16 : DType::f16, 2, grid);
      const auto [min, max] =
          std::minmax_element(values.begin() + static_cast<std::ptrdiff_t>(64 * b),
                              values.begin() + static_cast<std::ptrdiff_t>(64 * (b + 1)));
      REQUIRE(grid[0] <= *min);
      REQUIRE(grid[0] + 15 * grid[1] >= *max * (1 - 1e-6f) - 1e-6f);
      REQUIRE(grid[0] >= *min - std::abs(*min) / 128);
      REQUIRE(grid[1] <= (*max - *min + std::abs(*min) / 128) / 15 * (1 + 1.0f / 128));
    }
  }
}

TEST_CASE("scaling the tensor by a power of two changes no code with bf16 headers") {
  const std::vector<float> values = normal(64 * 50 + 17);
  const std::size_t headers = 1 + 51 * 4;
  for (const std::string parameters :
       {"bits=8", "bits=4", "bits=2", "bits=3,rounding=stochastic"}) {
    const std::unique_ptr<Codec> codec = block(parameters);
    const Bytes expected = encode(*codec, tensorOf(values));
    for (int exponent = -40; exponent <= 40; ++exponent) {
      std::vector<float> scaled = values;
      for (float& value : scaled) value = std::ldexp(value, exponent);
      const Bytes bytes = encode(*codec, tensorOf(scaled));
      REQUIRE(std::equal(bytes.begin() + static_cast<std::ptrdiff_t>(headers), bytes.end(),
                         expected.begin() + static_cast<std::ptrdiff_t>(headers)));
    }
  }
}

TEST_CASE("small gradients keep their accuracy with bf16 headers and lose it with fp16 headers") {
  std::vector<float> values = normal(64 * 200);
  const auto at = [&](float scale, const std::string& header) {
    std::vector<float> scaled = values;
    for (float& value : scaled) value *= scale;
    return snrOf(scaled, roundTrip("bits=8,header=" + header, scaled));
  };
  CHECK(at(1, "bf16") > 42);
  CHECK(at(1e-6f, "bf16") == Approx(at(1, "bf16")).margin(0.5));
  CHECK(at(1e-30f, "bf16") == Approx(at(1, "bf16")).margin(0.5));
  CHECK(at(1, "fp16") > 42);
  CHECK(at(1e-8f, "fp16") < 10);
}

TEST_CASE("no value changes by more than half a step, or a whole step with stochastic rounding") {
  const std::vector<float> values = normal(64 * 100 + 5);
  for (const int bits : {1, 2, 3, 4, 5, 6, 7, 8}) {
    for (const bool stochastic : {false, true}) {
      const std::string parameters =
          "bits=" + std::to_string(bits) + (stochastic ? ",rounding=stochastic" : "");
      const Bytes bytes = encode(*block(parameters), tensorOf(values));
      const std::vector<float> decoded = roundTrip(parameters, values);
      for (std::size_t j = 0; j < values.size(); ++j) {
        float step;
        toFloat(&bytes[1 + j / 64 * 4 + 2], DType::bf16, 1, &step);
        REQUIRE(std::abs(values[j] - decoded[j]) <= step * (stochastic ? 1.0f : 0.5f) + 1e-6f);
      }
    }
  }
}

TEST_CASE("values of ReLU6 whose block spans 0 to 6 are restored within a bf16 step") {
  std::vector<float> values(64, 0.0f);
  values[5] = 6;
  values[6] = 3;
  const std::vector<float> decoded = roundTrip("bits=8", values);
  CHECK(decoded[0] == 0);
  CHECK(decoded[5] == Approx(6).epsilon(0.005));
}

TEST_CASE("constants that the header can represent are restored exactly, others within 2^-8") {
  for (const float constant : {0.0f, 6.0f, -2.5f, 0x1p-100f})
    CHECK(roundTrip("bits=4", std::vector<float>(100, constant)) ==
          std::vector<float>(100, constant));
  for (const float constant : {0.1f, -7.3f, 3e38f, -3e38f}) {
    for (const float value : roundTrip("bits=4", std::vector<float>(100, constant)))
      REQUIRE(std::abs(value - constant) <= std::abs(constant) * 0x1p-8f);
  }
}

TEST_CASE("values at or below the minimum that the header can represent become that minimum") {
  for (const char* spec : {"block:bits=8,header=fp16", "block:bits=1,header=fp16"}) {
    std::vector<float> values(64, -65504.0f);
    values[3] = -70000.0f;
    const std::unique_ptr<Codec> codec = makeCodec(spec);
    const Tensor tensor = tensorOf(values);
    for (const float value : valuesOf(decode(*codec, encode(*codec, tensor), tensor.spec))) {
      CHECK(value == -65504.0f);
    }
  }
}

TEST_CASE("stochastic rounding is unbiased and differs between keys") {
  // Each block contains 0 and 3; all other values are 1.25. They must get the codes 1 and 2 in a
  // ratio of three to one.
  std::vector<float> values(64 * 1000, 1.25f);
  for (std::size_t b = 0; b < 1000; ++b) values[64 * b] = 0, values[64 * b + 1] = 3;
  const std::vector<float> decoded = roundTrip("bits=2,rounding=stochastic", values);
  double sum = 0;
  for (const float value : decoded) {
    REQUIRE((value == 0 || value == 1 || value == 2 || value == 3));
    sum += value;
  }
  CHECK(sum / static_cast<double>(values.size()) == Approx((1.25 * 62 + 3) / 64).epsilon(0.005));

  const std::unique_ptr<Codec> codec = block("bits=2,rounding=stochastic");
  const Tensor tensor = tensorOf(values);
  const Bytes bytes = encodeAt(*codec, tensor, 7, kKey);
  CHECK(encodeAt(*codec, tensor, 7, kKey) == bytes);
  CHECK(encodeAt(*codec, tensor, 8, kKey) != bytes);
  for (const Key& other :
       {Key{Phase::train, 4, 1, gradientAt(0)}, Key{Phase::train, 3, 2, gradientAt(0)},
        Key{Phase::train, 3, 1, gradientAt(1)}})
    CHECK(encodeAt(*codec, tensor, 7, other) != bytes);
}

TEST_CASE("evaluation rounds to nearest") {
  const Tensor tensor = tensorOf(normal(1000));
  const Key eval{Phase::eval, 3, 1, activationAt(0)};
  CHECK(encodeAt(*block("bits=3,rounding=stochastic"), tensor, 7, eval) ==
        encodeAt(*block("bits=3"), tensor, 7, eval));
}

TEST_CASE("values whose range overflows fp32, or the tensor's type, stay finite and close") {
  for (const std::string parameters : {"bits=8", "bits=4", "bits=1"}) {
    std::vector<float> values = normal(200);
    for (float& value : values) value *= 1e37f;
    values[7] = -kLargest;
    values[8] = kLargest;
    const int top = (1 << std::stoi(parameters.substr(5))) - 1;
    const std::vector<float> decoded = roundTrip(parameters, values);
    for (std::size_t j = 0; j < 64; ++j) {
      REQUIRE(std::isfinite(decoded[j]));
      REQUIRE(std::abs(double{values[j]} - double{decoded[j]}) <=
              2.0 * kLargest / top * 0.51 + (top == 1 ? kLargest : 0.005 * kLargest));
    }
  }
  for (const DType dtype : {DType::f16, DType::bf16}) {
    std::vector<float> values(100, largestOf(dtype));
    values[3] = -largestOf(dtype);
    values[70] = 0.5f;
    for (const std::string parameters : {"bits=8", "bits=3", "bits=8,header=fp16"})
      for (const float value : roundTrip(parameters, values, dtype)) REQUIRE(std::isfinite(value));
  }
}

TEST_CASE("an empty tensor has no payload, and a tensor that would grow is sent unchanged") {
  CHECK(encode(*block("bits=8"), tensorOf({})).empty());
  const Tensor tensor = tensorOf({-0.0f});
  const Bytes bytes = encode(*block("bits=8"), tensor);
  CHECK(bytes.size() == 5);
  CHECK(bytes[0] == std::byte{0});
  CHECK(decode(*block("bits=8"), bytes, tensor.spec).bytes == tensor.bytes);
  CHECK(encode(*block("bits=8"), tensorOf({1, 2}))[0] == std::byte{1});
}

TEST_CASE("a hostile header is refused, and the error names the tensor's key") {
  const Tensor tensor = tensorOf(normal(150));
  for (const std::string header : {"bf16", "fp16"}) {
    const std::unique_ptr<Codec> codec = block("bits=8,header=" + header);
    const Bytes good = encode(*codec, tensor);
    for (std::size_t b = 0; b < 3; ++b) {
      for (const std::uint16_t pattern : {0x7f80, 0x7fff, 0xff80, 0xffff}) {
        for (const std::size_t field : {0, 2}) {
          Bytes bytes = good;
          std::memcpy(&bytes[1 + 4 * b + field], &pattern, 2);
          CHECK_THROWS_WITH(decode(*codec, bytes, tensor.spec),
                            Contains("gradient/0") && Contains("not finite"));
        }
      }
      Bytes bytes = good;
      bytes[1 + 4 * b + 3] |= std::byte{0x80};  // makes the step negative
      CHECK_THROWS_AS(decode(*codec, bytes, tensor.spec), ProtocolError);
    }
  }
}

TEST_CASE("any finite header decodes to finite values of the tensor's type") {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const Tensor tensor = tensorOf(normal(64), dtype);
    const std::unique_ptr<Codec> codec = block("bits=8");
    Bytes bytes = encode(*codec, tensor);
    for (const std::uint16_t min : {0x7f7f, 0xff7f, 0x0000}) {
      for (const std::uint16_t step : {0x7f7f, 0x7c00, 0x0001}) {
        std::memcpy(&bytes[1], &min, 2);
        std::memcpy(&bytes[3], &step, 2);
        for (const float value : valuesOf(decode(*codec, bytes, tensor.spec)))
          REQUIRE(std::isfinite(value));
      }
    }
  }
}

TEST_CASE("a rotated block is encoded in the documented layout") {
  // Two blocks of 32 values, of which the first has one that is not 0, and 3 values more.
  std::vector<float> values(67, 0.0f);
  values[3] = 32;  // sign -1; row i of the matrix has the sign of the bits of i & 3
  values[64] = 1;
  const Bytes bytes = encode(*block("bits=1,size=32,rotation=hadamard"), tensorOf(values));
  REQUIRE(bytes.size() == 1 + 3 * 4 + 9);
  CHECK(shortAt(bytes, 1) == 0xbf80);  // the minimum, -1
  CHECK(shortAt(bytes, 3) == 0x4000);  // the step, 2
  CHECK(shortAt(bytes, 5) == 0);
  CHECK(shortAt(bytes, 7) == 0);
  CHECK(shortAt(bytes, 11) == 0x3f80);  // the rest is not rotated: the step, 1
  for (std::size_t j = 0; j < 4; ++j) CHECK(bytes[13 + j] == std::byte{0x66});
  for (std::size_t j = 4; j < 8; ++j) CHECK(bytes[13 + j] == std::byte{0});
  CHECK(bytes[21] == std::byte{0x01});
}

TEST_CASE("rotation improves heavy-tailed values and keeps the accuracy of normal ones") {
  const std::vector<float> plain = normal(64 * 500);
  std::vector<float> heavy = plain;
  for (float& value : heavy) value = value * value * value;
  std::vector<float> outliers = plain;
  for (std::size_t j = 0; j < outliers.size(); j += 64) outliers[j + j / 64 % 64] = 30;
  for (const std::string bits : {"2", "3", "4"}) {
    const auto gain = [&](const std::vector<float>& values) {
      return snrOf(values, roundTrip("rotation=hadamard,bits=" + bits, values)) -
             snrOf(values, roundTrip("bits=" + bits, values));
    };
    CHECK(gain(plain) == Approx(0).margin(0.3));
    CHECK(gain(heavy) > 3);
    CHECK(gain(outliers) > 3);
  }
}

TEST_CASE("constant blocks stay constant when rotated") {
  for (const float constant : {0.0f, 6.0f, -2.5f, 0x1p-100f})
    CHECK(roundTrip("bits=1,rotation=hadamard", std::vector<float>(128, constant)) ==
          std::vector<float>(128, constant));
}

TEST_CASE("rotated values up to the largest of the tensor's type stay finite and close") {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const float largest = largestOf(dtype);
    for (const std::string size : {"32", "64", "1024"}) {
      for (const int kind : {0, 1, 2}) {
        std::vector<float> values(2048, largest);
        for (std::size_t j = 0; j < values.size(); ++j) {
          if (kind == 1 && j % 2 == 1) values[j] = -largest;
          if (kind == 2 && j % 37 != 0) values[j] = 0;
        }
        const std::vector<float> decoded =
            roundTrip("bits=8,rotation=hadamard,size=" + size, values, dtype);
        for (std::size_t j = 0; j < values.size(); ++j) {
          REQUIRE(std::abs(decoded[j]) <= largest);
          REQUIRE(std::abs(double{decoded[j]} - double{values[j]}) <= 0.1 * largest);
        }
      }
    }
  }
}
