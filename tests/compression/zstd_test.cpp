// `zstd`: it compresses only if this saves enough, is lossless, and its decoder refuses invalid
// frames.
#include <zstd.h>

#include "common/core/random.h"
#include "compression/registry.h"
#include "tests/support/codecs/codec_tensors.h"

using namespace cleave;
using namespace cleave::test;
using Catch::Matchers::Contains;

namespace {

Tensor activation(std::size_t elements) {
  std::vector<float> values(elements);
  fillNormal(randomKey(4, "zstd-test"), values);
  for (float& value : values) value = std::max(value, 0.0f);
  return tensorOf(values);
}

Tensor noise(std::size_t elements) {
  std::vector<float> values(elements);
  fillUniform(randomKey(4, "zstd-test"), values);
  return tensorOf(values);
}

Bytes frameOf(const Bytes& content) {
  Bytes bytes(1 + ZSTD_compressBound(content.size()));
  bytes[0] = std::byte{2};
  bytes.resize(1 + ZSTD_compress(&bytes[1], bytes.size() - 1, content.data(), content.size(), 3));
  return bytes;
}

}  // namespace

TEST_CASE(
    "a payload that shrinks by an eighth is compressed, and decompressed to the inner payload") {
  const std::unique_ptr<Codec> inner = makeCodec("block:bits=4");
  for (const std::string level : {"1", "3", "19"}) {
    const std::unique_ptr<Codec> codec = makeCodec("zstd:level=" + level + "(block:bits=4)");
    const Tensor tensor = activation(20000);
    const Bytes bytes = encode(*codec, tensor);
    const Bytes plain = encode(*inner, tensor);
    CHECK(bytes[0] == std::byte{2});
    CHECK(bytes.size() <= 1 + plain.size() * 7 / 8);
    CHECK(decode(*codec, bytes, tensor.spec).bytes == decode(*inner, plain, tensor.spec).bytes);
  }
}

TEST_CASE("a payload that does not shrink by an eighth is sent uncompressed") {
  const std::unique_ptr<Codec> codec = makeCodec("zstd:level=3(uniform:bits=8)");
  const Tensor tensor = noise(20000);
  const Bytes plain = encode(*makeCodec("uniform:bits=8"), tensor);
  const Bytes bytes = encode(*codec, tensor);
  REQUIRE(bytes.size() == 1 + plain.size());
  CHECK(bytes[0] == std::byte{1});
  CHECK(std::equal(plain.begin(), plain.end(), bytes.begin() + 1));
}

TEST_CASE("zstd around none is lossless") {
  const std::unique_ptr<Codec> codec = makeCodec("zstd:level=1(none)");
  for (const Tensor& tensor : {activation(5000), noise(5000), tensorOf({}), tensorOf({1})})
    CHECK(decode(*codec, encode(*codec, tensor), tensor.spec).bytes == tensor.bytes);
}

TEST_CASE(
    "payloads of several pieces are lossless, and equal the result of compressing in one call") {
  const std::unique_ptr<Codec> codec = makeCodec("zstd:level=3(none)");
  for (const std::size_t elements :
       {std::size_t{1} << 15, (std::size_t{1} << 15) + 1, std::size_t{300'000}}) {
    CAPTURE(elements);
    const Tensor tensor = activation(elements);
    const Bytes bytes = encode(*codec, tensor);
    CHECK(bytes[0] == std::byte{2});
    CHECK(decode(*codec, bytes, tensor.spec).bytes == tensor.bytes);
    CHECK(bytes == frameOf(tensor.bytes));
  }
}

TEST_CASE("a frame whose declared or actual size is wrong is refused") {
  const std::unique_ptr<Codec> codec = makeCodec("zstd:level=3(uniform:bits=8)");
  const Tensor tensor = activation(1000);
  const Bytes plain = encode(*makeCodec("uniform:bits=8"), tensor);
  REQUIRE_NOTHROW(decode(*codec, frameOf(plain), tensor.spec));

  const Bytes bomb = frameOf(Bytes(std::size_t{64} << 20));
  CHECK(bomb.size() < 10000);
  CHECK_THROWS_WITH(decode(*codec, bomb, tensor.spec),
                    Contains("67108864 bytes") && Contains("at most 1009"));
  Bytes shorter = plain;
  shorter.pop_back();
  CHECK_THROWS_AS(decode(*codec, frameOf(shorter), tensor.spec), ProtocolError);

  Bytes twice = frameOf(plain);
  const Bytes again = frameOf({});
  twice.insert(twice.end(), again.begin() + 1, again.end());
  CHECK_THROWS_WITH(decode(*codec, twice, tensor.spec), Contains("not exactly one complete"));
}

TEST_CASE("zstd requires a codec to wrap and a valid level") {
  CHECK_THROWS_WITH(makeCodec("zstd:level=3"), Contains("needs a codec to wrap"));
  CHECK_THROWS_AS(makeCodec("zstd(none)"), UsageError);
  CHECK_THROWS_AS(makeCodec("zstd:level=20(none)"), UsageError);
  CHECK_THROWS_AS(makeCodec("zstd:level=3(zst)"), UsageError);
  CHECK(makeCodec("zstd:level=3(block:bits=4)")->spec() == "zstd:level=3(block:bits=4)");
}
