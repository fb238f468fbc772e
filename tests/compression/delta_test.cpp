// delta(CODEC): both sides keep what the receiver last decoded of each sample, and only changes are
// sent.
#include <cstring>
#include <limits>
#include <string>

#include "common/core/random.h"
#include "compression/registry.h"
#include "tests/support/codecs/codec_tensors.h"
#include "tests/support/copied.h"
#include "tests/support/error_code.h"

namespace cleave::test {
namespace {

constexpr std::uint32_t kSamples = 12;
constexpr std::size_t kRow = 2 * 5 * 7;
const TensorSpec kSpec{DType::f32, {4, 2, 5, 7}, MemoryOrder::channelsLast};

// The values of sample `number` in an epoch; over the epochs, they approach a limit.
std::vector<float> sampleAt(std::uint32_t number, int epoch) {
  std::vector<float> limit(kRow), first(kRow);
  fillNormal(randomKey(number, "delta-test limit"), limit);
  fillNormal(randomKey(number, "delta-test first"), first);
  for (std::size_t j = 0; j < kRow; ++j) limit[j] += first[j] / static_cast<float>(1 << epoch);
  return limit;
}

using Numbers = std::vector<std::uint32_t>;

std::vector<float> batchAt(const Numbers& numbers, int epoch) {
  std::vector<float> values;
  for (const std::uint32_t number : numbers) {
    const std::vector<float> sample = sampleAt(number, epoch);
    values.insert(values.end(), sample.begin(), sample.end());
  }
  return values;
}

// A side of the link: a codec and its cache.
struct Side {
  explicit Side(const std::string& spec) : codec(makeCodec(spec)) {}

  void keep(const SampleHistory& history) {
    for (std::size_t row = 0; row < history.numbers.size() && !history.decoded.empty(); ++row) {
      cache.replace(history.numbers[row], std::span(history.decoded).subspan(row * kRow, kRow), 1);
    }
  }
  Bytes encode(const Numbers& numbers, const Tensor& tensor) {
    SampleHistory history{numbers, cache};
    CodecContext context{7, {Phase::train, 1, 0, activationAt(0)}};
    context.history = &history;
    CutContext cut;
    Bytes bytes(codec->maxEncodedBytes(tensor.spec));
    bytes.resize(codec->encode(context, nullptr, cut, tensor.view(), bytes).bytes);
    CHECK(cut.value == nullptr);
    keep(history);
    return bytes;
  }
  Tensor decode(const Numbers& numbers, const Bytes& bytes, const TensorSpec& spec) {
    SampleHistory history{numbers, cache};
    CodecContext context{7, {Phase::train, 1, 0, activationAt(0)}};
    context.history = &history;
    CutContext cut;
    Tensor tensor{spec, Bytes(spec.bytes(), std::byte{0xa5})};
    codec->decode(context, nullptr, cut, bytes, {tensor.bytes.data(), spec});
    keep(history);
    return tensor;
  }
  std::string refusal(const Numbers& numbers, const Bytes& bytes, const TensorSpec& spec) {
    return errorCode([&] { decode(numbers, bytes, spec); });
  }

  std::unique_ptr<Codec> codec;
  SampleCache cache{kSamples};
};

struct Pair {
  explicit Pair(const std::string& spec) : sender(spec), receiver(spec) {}

  // Returns the signal-to-noise ratio.
  double send(const Numbers& numbers, int epoch, DType dtype = DType::f32) {
    Tensor tensor = tensorOf(batchAt(numbers, epoch), dtype);
    tensor.spec = kSpec;
    tensor.spec.dtype = dtype;
    tensor.spec.shape.front() = static_cast<std::int64_t>(numbers.size());
    bytes = sender.encode(numbers, tensor);
    const Tensor decoded = receiver.decode(numbers, bytes, tensor.spec);
    return snrOf(valuesOf(tensor), valuesOf(decoded));
  }
  bool haveEqualCaches() const {
    return copied(sender.cache.save()) == copied(receiver.cache.save());
  }

  Side sender, receiver;
  Bytes bytes;  // the last payload
};

TEST_CASE("the signal-to-noise ratio rises as samples change less, and both caches stay equal") {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const std::string inner : {"block:bits=2", "block:bits=4", "topk:ratio=0.3", "none",
                                    "power:rank=1", "zstd:level=1(block:bits=2)"}) {
      for (const std::string skip : {"0", "0.01"}) {
        INFO(inner << " skip=" << skip << " " << dtypeName(dtype));
        Pair pair("delta:first_bits=4,skip=" + skip + "(" + inner + ")");
        std::vector<double> snr;
        for (int epoch = 0; epoch < 6; ++epoch) {
          double sum = 0;
          // The samples are in other micro-batches in each epoch.
          for (std::uint32_t i = 0; i < 3; ++i) {
            Numbers numbers;
            for (std::uint32_t row = 0; row < 4; ++row) {
              numbers.push_back((i * 4 + row) * (epoch % 2 == 0 ? 5 : 7) % kSamples);
            }
            sum += pair.send(numbers, epoch, dtype);
          }
          snr.push_back(sum / 3);
          CHECK(pair.haveEqualCaches());
        }
        const double exact = 100;  // more than rounding to fp32 loses
        CHECK((snr.back() > snr[1] + 6 || snr.back() > exact));
      }
    }
  }
}

TEST_CASE("the first payload of a sample is block's, and later ones are CODEC's of the change") {
  Pair pair("delta:first_bits=8,skip=0(block:bits=3)");
  const Numbers numbers = {3, 1, 11, 0};
  Tensor tensor = tensorOf(batchAt(numbers, 0));
  tensor.spec = kSpec;
  pair.send(numbers, 0);
  const auto body = [&] { return Bytes(pair.bytes.begin() + 1, pair.bytes.end()); };
  CHECK(pair.bytes[0] == std::byte{1});
  CHECK((body() == encode(*makeCodec("block:bits=8"), tensor)));

  std::vector<float> change = batchAt(numbers, 1);
  for (std::size_t j = 0; j < change.size(); ++j) {
    change[j] -= pair.receiver.cache.row(numbers[j / kRow])[j % kRow];
  }
  Tensor changed = tensorOf(change);
  changed.spec = kSpec;
  pair.send(numbers, 1);
  CHECK(pair.bytes[0] == std::byte{2});
  CHECK((body() == encode(*makeCodec("block:bits=3"), changed)));

  // A micro-batch with a new sample is sent like the first one.
  pair.send({3, 1, 11, 2}, 1);
  CHECK(pair.bytes[0] == std::byte{1});
  pair.send({2, 0}, 2);
  CHECK(pair.bytes[0] == std::byte{2});
}

TEST_CASE("samples that have changed little are not sent") {
  Pair pair("delta:first_bits=8,skip=0.05(block:bits=4)");
  const Numbers numbers = {3, 1, 11, 0};
  pair.send(numbers, 3);
  const std::vector<std::byte> before = copied(pair.sender.cache.save());
  pair.send(numbers, 3);
  CHECK((pair.bytes == Bytes{std::byte{2}, std::byte{0}}));
  CHECK((copied(pair.receiver.cache.save()) == before));

  // Only sample 11 has changed.
  std::vector<float> values = batchAt(numbers, 3);
  for (std::size_t j = 2 * kRow; j < 3 * kRow; ++j) values[j] += 0.5f;
  Tensor tensor = tensorOf(values);
  tensor.spec = kSpec;
  const Bytes bytes = pair.sender.encode(numbers, tensor);
  TensorSpec one = kSpec;
  one.shape.front() = 1;
  CHECK(bytes[1] == std::byte{0b0100});
  CHECK(bytes.size() == 2 + makeCodec("block:bits=4")->maxEncodedBytes(one));
  const Tensor decoded = pair.receiver.decode(numbers, bytes, kSpec);
  CHECK(pair.haveEqualCaches());
  CHECK(snrOf(values, valuesOf(decoded)) > 25);

  // Bits of rows that do not exist, and payloads that do not match the bits, are refused.
  for (const int bits : {0b0000, 0b0110, 0b10100, 0xff}) {
    Bytes damaged = bytes;
    damaged[1] = static_cast<std::byte>(bits);
    CHECK(pair.receiver.refusal(numbers, damaged, kSpec) == "bad-payload");
  }
  CHECK(pair.receiver.refusal(numbers, {std::byte{2}}, kSpec) == "bad-payload");
}

TEST_CASE("a payload that does not match the receiver's cache is refused, and changes nothing") {
  Pair pair("delta(block:bits=4)");
  const Numbers numbers = {3, 1, 11, 0};
  pair.send(numbers, 0);
  const Bytes first = pair.bytes;
  pair.send(numbers, 1);
  const Bytes change = pair.bytes;
  const std::vector<std::byte> before = copied(pair.receiver.cache.save());
  CHECK(pair.receiver.refusal(numbers, first, kSpec) == "bad-payload");
  CHECK(pair.receiver.refusal({3, 1, 11, 2}, change, kSpec) == "bad-payload");
  for (std::size_t length = 0; length < change.size(); length += 5) {
    const Bytes part(change.begin(), change.begin() + static_cast<std::ptrdiff_t>(length));
    CHECK(pair.receiver.refusal(numbers, part, kSpec) == "bad-payload");
  }
  CHECK((copied(pair.receiver.cache.save()) == before));

  // With the codec none, a change may have any value.
  Pair exact("delta(none)");
  exact.send(numbers, 0);
  exact.send(numbers, 1);
  Bytes infinite = exact.bytes;
  const float infinity = std::numeric_limits<float>::infinity();
  std::memcpy(&infinite[1], &infinity, sizeof infinity);
  CHECK(exact.receiver.refusal(numbers, infinite, kSpec) == "bad-payload");
}

TEST_CASE("random changes from a peer are refused or decoded as finite values") {
  const RandomKey key = randomKey(4, "delta-test");
  std::uint64_t draw = 0;
  for (const std::string spec :
       {"delta(block:bits=4)", "delta:skip=0.1(topk:ratio=0.3)", "rans(delta:skip=0.1(none))"}) {
    Side side(spec);
    const Numbers numbers = {3, 1, 11, 0};
    for (const std::uint32_t number : numbers) {
      side.cache.replace(number, std::vector<float>(kRow, number == 3 ? 3e38f : 1), 1);
    }
    for (int round = 0; round < 2000; ++round) {
      Bytes noise(randomBits(key, draw++) % (side.codec->maxEncodedBytes(kSpec) + 2));
      for (std::byte& b : noise) b = static_cast<std::byte>(randomBits(key, draw++));
      if (!noise.empty()) noise[0] = static_cast<std::byte>(1 + round % 2);
      if (noise.size() > 1 && round % 4 < 2) noise[1] = std::byte{2};  // in rans: the format
      try {
        for (const float x : valuesOf(side.decode(numbers, noise, kSpec))) {
          REQUIRE(std::isfinite(x));
        }
      } catch (const ProtocolError& error) {
        REQUIRE(error.code() == "bad-payload");
      }
    }
  }
}

TEST_CASE("values near the limits of a type stay finite") {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    Pair pair("delta(block:bits=2)");
    TensorSpec spec = kSpec;
    spec.dtype = dtype;
    for (const float sign : {1.0f, -1.0f, 1.0f}) {
      Tensor tensor = tensorOf(std::vector<float>(4 * kRow, sign * largestOf(dtype)), dtype);
      tensor.spec = spec;
      const Numbers numbers = {3, 1, 11, 0};
      const Bytes bytes = pair.sender.encode(numbers, tensor);
      for (const float x : valuesOf(pair.receiver.decode(numbers, bytes, spec))) {
        REQUIRE(std::isfinite(x));
      }
      CHECK(pair.haveEqualCaches());
    }
  }
}

TEST_CASE("a tensor with NaN is refused, and leaves the cache unchanged if it is sent raw") {
  Pair pair("delta(none)");
  const Numbers numbers = {3, 1, 11, 0};
  pair.send(numbers, 0);
  const std::vector<std::byte> before = copied(pair.receiver.cache.save());
  Tensor tensor = tensorOf(std::vector<float>(4 * kRow, std::numeric_limits<float>::quiet_NaN()));
  tensor.spec = kSpec;
  CHECK(errorCode([&] { pair.sender.encode(numbers, tensor); }) == "non-finite");
  Bytes raw(1 + tensor.bytes.size(), std::byte{0});
  std::copy(tensor.bytes.begin(), tensor.bytes.end(), raw.begin() + 1);
  CHECK((pair.receiver.decode(numbers, raw, kSpec).bytes == tensor.bytes));
  CHECK((copied(pair.receiver.cache.save()) == before));
  CHECK(pair.haveEqualCaches());
}

TEST_CASE("only codecs that compress a payload can wrap delta") {
  CHECK(makeCodec("delta(block:bits=4)")->spec() == "delta:first_bits=8,skip=0(block:bits=4)");
  CHECK(makeCodec("rans(delta(block:bits=4))")->keepsSamples());
  for (const std::string spec : {"delta", "delta(delta(fp16))", "power:rank=2(delta(fp16))",
                                 "delta:skip=2(fp16)", "delta:first_bits=9(fp16)"}) {
    INFO(spec);
    CHECK(errorCode([&] { makeCodec(spec); }) == "bad-codec-spec");
  }
}

}  // namespace
}  // namespace cleave::test
