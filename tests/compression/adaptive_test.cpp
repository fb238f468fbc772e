// `adaptive`: its layout, how it divides the bits among blocks, and how much accuracy that gains.
#include <bit>
#include <cmath>
#include <cstring>

#include "common/core/random.h"
#include "compression/registry.h"
#include "tests/support/codecs/codec_tensors.h"

using namespace cleave;
using namespace cleave::test;
using Catch::Matchers::Contains;

namespace {

// Normally distributed values; the scale is different in each block of 64.
std::vector<float> uneven(std::size_t elements, float spread) {
  std::vector<float> values(elements), scales(elements / 64 + 1);
  fillNormal(randomKey(1, "adaptive-test"), values);
  fillNormal(randomKey(2, "adaptive-test"), scales);
  for (std::size_t j = 0; j < elements; ++j) values[j] *= std::exp(spread * scales[j / 64]);
  return values;
}

// The parts of a payload of `adaptive` with blocks of 64.
struct Parts {
  std::vector<Bytes> headers;
  std::vector<int> widths;
  std::vector<Bytes> codes;
};

Parts partsOf(const Bytes& payload, std::size_t elements) {
  const std::size_t blocks = (elements + 63) / 64;
  Parts parts;
  std::size_t at = 1 + 4 * blocks + (blocks + 1) / 2;
  for (std::size_t b = 0; b < blocks; ++b) {
    const auto header = payload.begin() + static_cast<std::ptrdiff_t>(1 + 4 * b);
    parts.headers.emplace_back(header, header + 4);
    const int pair = std::to_integer<int>(payload[1 + 4 * blocks + b / 2]);
    parts.widths.push_back(b % 2 == 0 ? pair % 16 : pair / 16);
    const std::size_t count = std::min<std::size_t>(64, elements - 64 * b);
    const std::size_t bytes = (count * static_cast<std::size_t>(parts.widths[b]) + 7) / 8;
    const auto codes = payload.begin() + static_cast<std::ptrdiff_t>(at);
    parts.codes.emplace_back(codes, codes + static_cast<std::ptrdiff_t>(bytes));
    at += bytes;
  }
  REQUIRE(at == payload.size());
  return parts;
}

float rangeOf(const std::vector<float>& values) {
  const auto [min, max] = std::minmax_element(values.begin(), values.end());
  return *max - *min;
}

double gain(const std::string& bits, const std::vector<float>& values) {
  const Tensor tensor = tensorOf(values);
  return snr(*makeCodec("adaptive:bits=" + bits), tensor) -
         snr(*makeCodec("block:bits=" + bits), tensor);
}

}  // namespace

TEST_CASE("a small tensor is encoded in the documented layout") {
  // Three blocks: a constant, 0 and 3 in turn, and three values of 0…2.
  std::vector<float> values(67, 2.0f);
  for (std::size_t j = 32; j < 64; ++j) values[j] = j % 2 == 0 ? 0.0f : 3.0f;
  values[64] = 0, values[65] = 2, values[66] = 0;
  const Bytes bytes = encode(*makeCodec("adaptive:bits=1,size=32"), tensorOf(values));
  // At most 9 bytes of codes: 8 for the second block with 2 bits, 1 for the third with 2.
  REQUIRE(bytes.size() == 1 + 3 * 4 + 2 + 8 + 1);
  const auto shortAt = [&](std::size_t place) {
    std::uint16_t value;
    std::memcpy(&value, &bytes[place], sizeof value);
    return value;
  };
  CHECK(shortAt(1) == 0x4000);  // min 2, step 0
  CHECK(shortAt(3) == 0);
  CHECK(shortAt(5) == 0);  // min 0, step 1
  CHECK(shortAt(7) == 0x3f80);
  CHECK(shortAt(9) == 0);  // min 0, step 2/3, rounded up
  CHECK(shortAt(11) == 0x3f2b);
  CHECK(bytes[13] == std::byte{0x20});  // widths 0 and 2
  CHECK(bytes[14] == std::byte{0x02});
  for (std::size_t j = 0; j < 8; ++j) CHECK(bytes[15 + j] == std::byte{0xcc});
  CHECK(bytes[23] == std::byte{0x0c});
}

TEST_CASE("each block is encoded as by the codec block with the same number of bits") {
  const std::size_t elements = 64 * 200 + 21;
  const std::vector<float> values = uneven(elements, 1.5f);
  for (const char* bits : {"0.5", "2", "3.7", "8"}) {
    CAPTURE(bits);
    const auto codec = makeCodec("adaptive:bits=" + std::string(bits));
    const Tensor tensor = tensorOf(values);
    const Bytes payload = encode(*codec, tensor);
    const Parts parts = partsOf(payload, elements);
    const std::vector<float> decoded = valuesOf(decode(*codec, payload, tensor.spec));
    for (std::size_t b = 0; b < parts.widths.size(); ++b) {
      const auto first = static_cast<std::ptrdiff_t>(64 * b);
      const auto last = static_cast<std::ptrdiff_t>(std::min(64 * (b + 1), elements));
      const std::vector<float> block(values.begin() + first, values.begin() + last);
      const std::vector<float> result(decoded.begin() + first, decoded.begin() + last);
      if (parts.widths[b] == 0) {
        const auto [min, max] = std::minmax_element(block.begin(), block.end());
        const float middle = (*min + *max) / 2;
        for (const float value : result) {
          REQUIRE(value == result[0]);
          REQUIRE(value <= middle);
          REQUIRE(value >= middle - std::abs(middle) / 128);
        }
        continue;
      }
      const auto same = makeCodec("block:bits=" + std::to_string(parts.widths[b]));
      const Tensor alone = tensorOf(block);
      Bytes expected = encode(*same, alone);
      REQUIRE(expected[0] == std::byte{1});
      REQUIRE(Bytes(expected.begin() + 1, expected.begin() + 5) == parts.headers[b]);
      REQUIRE(Bytes(expected.begin() + 5, expected.end()) == parts.codes[b]);
      REQUIRE(valuesOf(decode(*same, expected, alone.spec)) == result);
    }
  }
}

TEST_CASE("blocks with a larger range never get fewer bits, and nearly all bits are used") {
  const std::size_t elements = 64 * 1000;
  for (const float spread : {0.0f, 0.3f, 1.5f, 5.0f}) {
    const std::vector<float> values = uneven(elements, spread);
    for (const double bits : {1.0, 2.0, 3.5, 6.0}) {
      CAPTURE(spread, bits);
      const auto codec = makeCodec("adaptive:bits=" + shortestText(bits));
      const Tensor tensor = tensorOf(values);
      const Bytes payload = encode(*codec, tensor);
      const Parts parts = partsOf(payload, elements);
      std::vector<std::pair<float, int>> blocks;
      std::size_t codeBytes = 0;
      for (std::size_t b = 0; b < parts.widths.size(); ++b) {
        const auto first = values.begin() + static_cast<std::ptrdiff_t>(64 * b);
        blocks.emplace_back(rangeOf({first, first + 64}), parts.widths[b]);
        codeBytes += parts.codes[b].size();
        REQUIRE((parts.widths[b] != 1 && parts.widths[b] <= 8));
      }
      std::sort(blocks.begin(), blocks.end());
      for (std::size_t b = 1; b < blocks.size(); ++b)
        REQUIRE(blocks[b - 1].second <= blocks[b].second);
      const double budget = bits * static_cast<double>(elements) / 8;
      CHECK(static_cast<double>(codeBytes) <= budget);
      CHECK(static_cast<double>(codeBytes) >= 0.95 * budget);
    }
  }
}

TEST_CASE("uneven tensors gain accuracy, and even ones keep it") {
  for (const std::string bits : {"2", "3", "4"}) {
    CAPTURE(bits);
    CHECK(gain(bits, uneven(64 * 2000, 1.5f)) > 12);
    CHECK(gain(bits, uneven(64 * 2000, 0.5f)) > 1);
    CHECK(gain(bits, uneven(64 * 2000, 0)) > -1);
    std::vector<float> relu = uneven(64 * 2000, 0);
    for (float& value : relu) value = std::max(value, 0.0f);
    CHECK(gain(bits, relu) > -1);
  }
}

TEST_CASE("constant tensors take no codes, and finite values of any size stay finite") {
  const Tensor constant = tensorOf(std::vector<float>(640, 6.0f));
  const auto codec = makeCodec("adaptive:bits=4");
  const Bytes bytes = encode(*codec, constant);
  CHECK(bytes.size() == 1 + 10 * 4 + 5);
  CHECK(decode(*codec, bytes, constant.spec).bytes == constant.bytes);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    std::vector<float> values = uneven(640, 1);
    for (std::size_t j = 0; j < values.size(); j += 3)
      values[j] = j % 2 == 0 ? largestOf(dtype) : -largestOf(dtype);
    std::fill_n(values.begin(), 64, largestOf(dtype));
    for (const char* bits : {"0.5", "2", "8"}) {
      const auto any = makeCodec("adaptive:bits=" + std::string(bits));
      const Tensor tensor = tensorOf(values, dtype);
      for (const float value : valuesOf(decode(*any, encode(*any, tensor), tensor.spec)))
        REQUIRE(std::isfinite(value));
    }
  }
}

TEST_CASE("invalid widths, headers and lengths are refused") {
  const std::size_t elements = 64 * 4 + 9;
  const auto codec = makeCodec("adaptive:bits=4");
  const Tensor tensor = tensorOf(uneven(elements, 1));
  const Bytes good = encode(*codec, tensor);
  const std::size_t widths = 1 + 5 * 4;
  const auto with = [&](std::size_t at, unsigned value) {
    Bytes bytes = good;
    bytes[at] = static_cast<std::byte>(value);
    return bytes;
  };
  const auto refused = [&](const Bytes& bytes, const char* reason) {
    CHECK_THROWS_WITH(decode(*codec, bytes, tensor.spec),
                      Contains(reason) && Contains("gradient/0"));
  };
  for (std::size_t b = 0; b < 3; ++b) refused(with(widths + b, 0x09), "a width exceeds 8");
  refused(with(widths, 0x88), "widths exceed the number of bits");
  refused(with(widths, 0x00), "are required");
  refused(with(0, 2), "format 2");
  refused(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(widths)), "its length");
  for (std::size_t b = 0; b < 5; ++b) {
    Bytes bytes = good;
    const std::uint16_t infinity = 0x7f80;
    std::memcpy(&bytes[1 + 4 * b], &infinity, 2);
    refused(bytes, "not finite");
  }
}
