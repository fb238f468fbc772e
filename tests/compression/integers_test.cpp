// The codec of masks and ids: exact, with as few bits as the values need, and safe against garbled
// payloads.
#include <cstring>
#include <limits>

#include "compression/registry.h"
#include "tests/support/codecs/codec_tensors.h"
#include "tests/support/error_code.h"

using namespace cleave;
using namespace cleave::test;

namespace {

constexpr std::size_t kHeader = 9;

Tensor integersOf(const std::vector<std::int64_t>& values) {
  Tensor tensor{{DType::i64, {static_cast<std::int64_t>(values.size())}}, {}};
  tensor.bytes.resize(tensor.spec.bytes());
  if (!values.empty()) std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

// `count` values from `first` on, of which the largest is first + range.
Tensor valuesBetween(std::int64_t first, std::uint64_t range, std::size_t count) {
  std::vector<std::int64_t> values(count);
  for (std::size_t v = 0; v < count; ++v) {
    const std::uint64_t offset = v + 1 == count ? range : range / 3 * (v % 4);
    values[v] = static_cast<std::int64_t>(static_cast<std::uint64_t>(first) + offset);
  }
  return integersOf(values);
}

std::size_t roundTrip(const Tensor& tensor) {
  const auto codec = makeIntegerCodec();
  const Bytes bytes = encode(*codec, tensor);
  CHECK(decode(*codec, bytes, tensor.spec).bytes == tensor.bytes);
  return bytes.size();
}

}  // namespace

TEST_CASE("a mask takes a bit per token") {
  CHECK(roundTrip(valuesBetween(0, 1, 4096)) == kHeader + 512);
  CHECK(roundTrip(valuesBetween(0, 1, 4099)) == kHeader + 513);
  CHECK(roundTrip(valuesBetween(0, 1, 100000)) == kHeader + 12500);
}

TEST_CASE("a mask that is the same everywhere takes no bits") {
  CHECK(roundTrip(valuesBetween(1, 0, 5000)) == kHeader);
  CHECK(roundTrip(integersOf({})) == 0);
}

TEST_CASE("all integers arrive unchanged") {
  constexpr auto kMin = std::numeric_limits<std::int64_t>::min();
  constexpr auto kMax = std::numeric_limits<std::uint64_t>::max();
  CHECK(roundTrip(valuesBetween(5, 50256, 1000)) == kHeader + 2000);  // ids of GPT-2
  CHECK(roundTrip(valuesBetween(-7, 65535, 5000)) == kHeader + 10000);
  CHECK(roundTrip(valuesBetween(-7, 65536, 5000)) == kHeader + 20000);
  CHECK(roundTrip(valuesBetween(kMin, 0xffffffff, 10)) == kHeader + 40);
  CHECK(roundTrip(valuesBetween(kMin, kMax, 10)) == kHeader + 80);
  for (int bits = 1; bits <= 16; ++bits) {
    CHECK(roundTrip(valuesBetween(-1, (1ULL << bits) - 1, 8192 + 5)) ==
          kHeader + ((8192 + 5) * static_cast<std::size_t>(bits) + 7) / 8);
  }
}

TEST_CASE("garbled payloads of integers are refused") {
  const auto codec = makeIntegerCodec();
  const Tensor tensor = valuesBetween(0, 1, 100);
  const Bytes valid = encode(*codec, tensor);
  const auto decodeBytes = [&](const Bytes& bytes) { decode(*codec, bytes, tensor.spec); };
  for (std::size_t size = 0; size < valid.size(); ++size) {
    CHECK(errorCode([&] {
            decodeBytes({valid.begin(), valid.begin() + static_cast<std::ptrdiff_t>(size)});
          }) == "bad-payload");
  }
  for (int bits = 0; bits < 256; ++bits) {
    if (bits == 1) continue;
    Bytes bytes = valid;
    bytes[0] = static_cast<std::byte>(bits);
    CHECK(errorCode([&] { decodeBytes(bytes); }) == "bad-payload");
  }
}

TEST_CASE("only tensors of integers have the codec of integers") {
  CHECK(errorCode([] { makeCodec("integers"); }) == "unknown-codec");
  CHECK(errorCode([] {
          checkAccepts(*makeCodec("block:bits=8"), {DType::i64, {4}}, "mask");
        }) == "bad-codec-spec");
  checkAccepts(*makeIntegerCodec(), {DType::i64, {4}}, "mask");
  CHECK(errorCode([] {
          checkAccepts(*makeIntegerCodec(), {DType::f32, {4}}, "activation");
        }) == "bad-codec-spec");
}
