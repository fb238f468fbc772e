// `rans`: it is lossless, close to the entropy, decoded as documented, and refuses invalid
// payloads. Most tests wrap `none`, so that the tensor's bytes are the payload to compress.
#include <cmath>
#include <cstring>

#include "common/core/random.h"
#include "compression/registry.h"
#include "tests/support/codecs/codec_tensors.h"

using namespace cleave;
using namespace cleave::test;
using Catch::Matchers::Contains;

namespace {

constexpr std::size_t kSegment = 65536;
constexpr std::size_t kSegmentAt = 1 + 8 + 4;  // in a payload with one segment

// Random bytes; `share(b)` is the relative frequency of byte b. The size must be even.
template <typename Share>
Bytes bytesOf(std::size_t size, const Share& share) {
  std::vector<double> ends(256);
  double sum = 0;
  for (int b = 0; b < 256; ++b) ends[static_cast<std::size_t>(b)] = sum += share(b);
  const RandomKey key = randomKey(1, "rans-test", {size});
  Bytes bytes(size);
  for (std::size_t j = 0; j < size; ++j) {
    const double draw = static_cast<double>(randomBits(key, j) >> 11) * 0x1p-53 * sum;
    const auto found = std::upper_bound(ends.begin(), ends.end() - 1, draw);
    bytes[j] = static_cast<std::byte>(found - ends.begin());
  }
  return bytes;
}

Bytes skewed(std::size_t size) {
  return bytesOf(size, [](int b) { return std::exp2(-b / 16.0); });
}
Bytes noise(std::size_t size) {
  return bytesOf(size, [](int) { return 1; });
}

// A tensor with these bytes; a copy is padded to whole elements.
Tensor tensorFrom(const Bytes& bytes) {
  return {{DType::bf16, {static_cast<std::int64_t>(bytes.size() / 2)}}, bytes};
}

Bytes encodeBytes(const Bytes& bytes) {
  return encode(*makeCodec("rans(none)"), tensorFrom(bytes));
}

// Decodes as documented in rans.cpp, one value at a time, without any check.
Bytes decodeSimply(const Bytes& payload) {
  REQUIRE(payload[0] == std::byte{2});
  const std::byte* in = payload.data() + 1;
  const auto next = [&]<typename Word>(Word word) {
    std::memcpy(&word, in, sizeof word);
    in += sizeof word;
    return word;
  };
  Bytes out(next(std::uint64_t{}));
  std::vector<std::uint32_t> sizes((out.size() + kSegment - 1) / kSegment);
  for (std::uint32_t& size : sizes) size = next(std::uint32_t{});
  for (std::size_t s = 0; s < sizes.size(); ++s) {
    const std::byte* const end = in + sizes[s];
    const std::size_t start = s * kSegment;
    const std::size_t count = std::min(kSegment, out.size() - start);
    if (sizes[s] == count) {
      std::memcpy(&out[start], in, count);
      in = end;
      continue;
    }
    const std::size_t stride = next(std::uint8_t{});
    std::vector<std::array<std::uint32_t, 257>> starts(stride);
    for (auto& table : starts) {
      std::uint8_t bitmap[32];
      for (std::uint8_t& bits : bitmap) bits = next(std::uint8_t{});
      table[0] = 0;
      for (std::size_t b = 0; b < 256; ++b) {
        table[b + 1] = table[b];
        if ((bitmap[b / 8] >> b % 8 & 1) == 0) continue;
        const std::uint32_t low = next(std::uint8_t{});
        table[b + 1] += (low < 128 ? low : low - 128 + 128 * next(std::uint8_t{})) + 1;
      }
      REQUIRE(table[256] == 4096);
    }
    std::uint32_t states[12];
    for (std::uint32_t& state : states) state = next(std::uint32_t{});
    for (std::size_t j = 0; j < count; ++j) {
      const auto& table = starts[j % stride];
      std::uint32_t& x = states[j % 12];
      std::size_t b = 0;
      while (table[b + 1] <= x % 4096) ++b;
      out[start + j] = static_cast<std::byte>(b);
      x = (table[b + 1] - table[b]) * (x / 4096) + x % 4096 - table[b];
      if (x < 65536) x = x << 16 | next(std::uint16_t{});
    }
    for (const std::uint32_t state : states) REQUIRE(state == 65536);
    REQUIRE(in == end);
  }
  REQUIRE(in == payload.data() + payload.size());
  return out;
}

std::string refusal(const Bytes& payload, std::size_t bytes) {
  const Tensor tensor = tensorFrom(Bytes(bytes));
  try {
    decode(*makeCodec("rans(none)"), payload, tensor.spec);
    return "";
  } catch (const ProtocolError& error) {
    CHECK(error.code() == "bad-payload");
    return error.what();
  }
}

}  // namespace

TEST_CASE("a constant tensor is encoded in the documented layout") {
  const Bytes bytes = encodeBytes(Bytes(1000, std::byte{9}));
  Bytes expected(1 + 8 + 4 + 1 + 32 + 2 + 48);
  expected[0] = std::byte{2};
  expected[1] = std::byte{1000 % 256};
  expected[2] = std::byte{1000 / 256};
  expected[9] = std::byte{1 + 32 + 2 + 48};
  expected[13] = std::byte{1};      // the stride
  expected[14 + 1] = std::byte{2};  // the value 9
  expected[46] = std::byte{255};    // its frequency, 4096
  expected[47] = std::byte{31};
  for (std::size_t k = 0; k < 12; ++k) expected[48 + 4 * k + 2] = std::byte{1};  // 65536
  CHECK(bytes == expected);
}

TEST_CASE("the documented steps decode what the encoder writes, at any length") {
  for (const std::size_t size :
       {1500, 1502, 1504, 1506, 1508, 1510, 4096, 65534, 65536, 65538, 66100, 300002}) {
    CAPTURE(size);
    const Bytes bytes = skewed(size);
    const Bytes payload = encodeBytes(bytes);
    REQUIRE(payload.size() < bytes.size());
    CHECK((decodeSimply(payload) == bytes));
    const Tensor tensor = tensorFrom(bytes);
    CHECK((decode(*makeCodec("rans(none)"), payload, tensor.spec).bytes == bytes));
  }
}

TEST_CASE("any distribution of bytes is decoded to the same bytes") {
  const auto check = [](const Bytes& bytes) {
    const Tensor tensor = tensorFrom(bytes);
    const Bytes payload = encodeBytes(bytes);
    REQUIRE((decode(*makeCodec("rans(none)"), payload, tensor.spec).bytes == bytes));
    if (payload[0] == std::byte{2}) REQUIRE((decodeSimply(payload) == bytes));
  };
  check(Bytes(200000));
  // One frequent value, and `rare` values that occur once.
  for (const std::size_t rare : {1, 2, 100, 255}) {
    Bytes bytes(60000, std::byte{7});
    for (std::size_t k = 0; k < rare; ++k) bytes[200 * k + 3] = static_cast<std::byte>(k + 8);
    check(bytes);
  }
  for (int values = 2; values <= 256; values += 5) {
    check(bytesOf(20000, [&](int b) { return b < values ? 1.0 : 0.0; }));
    check(bytesOf(20000, [&](int b) { return b < values ? std::exp2(-b) : 1e-4; }));
  }
}

TEST_CASE("the size exceeds the entropy by less than 1 %, apart from the tables") {
  for (const double scale : {2.0, 8.0, 16.0, 50.0}) {
    const Bytes bytes = bytesOf(4 * kSegment, [&](int b) { return std::exp(-b / scale); });
    std::vector<double> counts(256);
    for (const std::byte b : bytes) ++counts[std::to_integer<std::size_t>(b)];
    double bits = 0;
    for (const double count : counts) {
      if (count > 0) bits -= count * std::log2(count / static_cast<double>(bytes.size()));
    }
    CHECK(static_cast<double>(encodeBytes(bytes).size()) < 1.01 * bits / 8 + 4 * 350);
  }
}

TEST_CASE("values of several bytes are compressed with a table for each of their bytes") {
  std::vector<float> values(30000);
  fillNormal(randomKey(6, "rans-test"), values);
  struct Row {
    std::string inner;
    int stride;
    double ratio;  // of the payload's bytes
  };
  for (const Row& row : {Row{"none", 4, 0.88}, Row{"bf16", 2, 0.75},
                         Row{"uniform:bits=12", 3, 0.94}, Row{"uniform:bits=8", 1, 0.89}}) {
    CAPTURE(row.inner);
    const Tensor tensor = tensorOf(values);
    const Bytes plain = encode(*makeCodec(row.inner), tensor);
    const Bytes bytes = encode(*makeCodec("rans(" + row.inner + ")"), tensor);
    REQUIRE(bytes[0] == std::byte{2});
    const std::size_t segments = (plain.size() + kSegment - 1) / kSegment;
    CHECK(std::to_integer<int>(bytes[9 + 4 * segments]) == row.stride);
    CHECK(static_cast<double>(bytes.size()) / static_cast<double>(plain.size()) < row.ratio);
    decodeSimply(bytes);
  }
}

TEST_CASE("random bytes are sent as they are, and only the segments that shrink are compressed") {
  const Bytes random = noise(kSegment);
  const Bytes stored = encodeBytes(random);
  REQUIRE(stored.size() == 1 + random.size());
  CHECK(stored[0] == std::byte{1});

  Bytes mixed = random;
  mixed.resize(3 * kSegment);
  std::copy(random.begin(), random.end(), mixed.begin() + 2 * kSegment);
  const Bytes payload = encodeBytes(mixed);
  CHECK(payload.size() == 1 + 8 + 3 * 4 + 2 * kSegment + 83);
  CHECK((decodeSimply(payload) == mixed));
}

TEST_CASE("the payload of a block codec is compressed, and the decoded tensor stays the same") {
  std::vector<float> values(100000);
  fillNormal(randomKey(4, "rans-test"), values);
  for (const bool relu : {false, true}) {
    if (relu)
      for (float& value : values) value = std::max(value, 0.0f);
    for (const std::string inner :
         {"block:bits=2", "block:bits=4", "block:bits=8", "block:bits=4,rotation=hadamard"}) {
      CAPTURE(inner, relu);
      const Tensor tensor = tensorOf(values);
      const Bytes plain = encode(*makeCodec(inner), tensor);
      const auto codec = makeCodec("rans(" + inner + ")");
      const Bytes bytes = encode(*codec, tensor);
      const double limit = relu && inner.size() < 15 ? 0.75 : 0.98;
      CHECK(static_cast<double>(bytes.size()) < limit * static_cast<double>(plain.size()));
      CHECK((decode(*codec, bytes, tensor.spec).bytes ==
             decode(*makeCodec(inner), plain, tensor.spec).bytes));
    }
  }
}

TEST_CASE("every kind of damage is refused with its reason") {
  const std::size_t size = 5000;
  const Bytes good = encodeBytes(skewed(size));
  REQUIRE(good[0] == std::byte{2});
  const auto with = [&](std::size_t at, std::uint64_t value, std::size_t bytes) {
    Bytes changed = good;
    std::memcpy(&changed[at], &value, bytes);
    return refusal(changed, size);
  };
  CHECK_THAT(refusal(Bytes(good.begin(), good.begin() + 8), size), Contains("within its size"));
  CHECK_THAT(refusal(Bytes(good.begin(), good.begin() + 12), size), Contains("segments' sizes"));
  CHECK_THAT(refusal(Bytes(good.begin(), good.end() - 1), size), Contains("within segment 0"));
  Bytes longer = good;
  longer.push_back(std::byte{0});
  CHECK_THAT(refusal(longer, size), Contains("after its last segment"));
  CHECK_THAT(with(1, std::uint64_t{1} << 62, 8), Contains("bytes, but none writes at most 5000"));
  CHECK_THAT(with(1, 0, 8), Contains("after its last segment"));
  CHECK_THAT(with(1, size - 1, 8), Contains("segment 0 is invalid"));
  // Segments that are not compressed at all.
  Bytes all(1 + 8 + 4 + size);
  all[0] = std::byte{2};
  std::memcpy(&all[1], &size, 8);
  std::memcpy(&all[9], &size, 4);
  CHECK_THAT(refusal(all, size), Contains("longer than the payload of none"));
  // A value more, a value less, and another frequency.
  const std::string invalid = "segment 0 is invalid";
  for (std::size_t b = 0; b < 32; ++b) {
    for (const unsigned value : {0x00, 0xff}) {
      if (good[kSegmentAt + 1 + b] != static_cast<std::byte>(value))
        CHECK_THAT(with(kSegmentAt + 1 + b, value, 1), Contains(invalid));
    }
  }
  CHECK_THAT(with(kSegmentAt + 1 + 32, 0, 1), Contains(invalid));
  for (const unsigned stride : {0, 2, 3, 4, 5, 255})
    CHECK_THAT(with(kSegmentAt, stride, 1), Contains(invalid));
  // A state, and the last word.
  const std::size_t end = good.size();
  CHECK_THAT(with(end - 2, 0, 2), Contains(invalid));
  // A segment that ends within its bitmap, frequencies, states or words, or has too many words.
  for (std::size_t bytes = 0; bytes < good.size() - kSegmentAt; bytes += 7) {
    Bytes shorter(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(kSegmentAt + bytes));
    std::memcpy(&shorter[9], &bytes, 4);
    CHECK_THAT(refusal(shorter, size), Contains(invalid));
  }
  Bytes more = longer;
  more.push_back(std::byte{0});
  const std::size_t bytes = more.size() - kSegmentAt;
  std::memcpy(&more[9], &bytes, 4);
  CHECK_THAT(refusal(more, size), Contains(invalid));
}

TEST_CASE("codecs that compress another codec's payload need one, and have no unknown parameters") {
  CHECK_THROWS_WITH(makeCodec("rans"), Contains("needs a codec to wrap"));
  CHECK_THROWS_AS(makeCodec("rans:level=1(none)"), UsageError);
  CHECK_THROWS_AS(makeCodec("rans(ran)"), UsageError);
  CHECK(makeCodec("rans(block:bits=4)")->spec() == "rans(block:bits=4)");
}

TEST_CASE("a wrapped codec keeps its state, which can be saved and restored") {
  std::vector<float> values(2 * 16 * 48);
  fillNormal(randomKey(5, "rans-test"), values);
  Tensor tensor = tensorOf(values);
  tensor.spec.shape = {2, 16, 6, 8};
  for (const std::string wrapper : {"rans", "zstd:level=1"}) {
    const auto codec = makeCodec(wrapper + "(power:rank=2,iterations=1)");
    Key key = kKey;
    const auto encoded = [&](const CodecState& state, Bytes& out) {
      CutContext cut;
      out.resize(codec->maxEncodedBytes(tensor.spec));
      const Encoded result = codec->encode({7, key}, state, cut, tensor.view(), out);
      out.resize(result.bytes);
      return result.state;
    };
    Bytes first, whole, resumed, fresh;
    const CodecState state = encoded(nullptr, first);
    ++key.step;
    encoded(state, whole);
    encoded(codec->restoreState(codec->saveState(state)), resumed);
    encoded(nullptr, fresh);
    CHECK((resumed == whole));
    CHECK((fresh != whole));
  }
}
