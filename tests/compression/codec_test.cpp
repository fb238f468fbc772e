// The contract of codecs, tested on every row of the codec table.
#include <cmath>
#include <future>
#include <limits>

#include "common/codec/raw.h"
#include "common/core/random.h"
#include "compression/parts/strips.h"
#include "compression/registry.h"
#include "tests/support/codecs/codec_specs.h"
#include "tests/support/codecs/codec_tensors.h"
#include "tests/support/error_code.h"

using namespace cleave;
using namespace cleave::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();

std::vector<float> normal(std::size_t elements) {
  std::vector<float> values(elements);
  fillNormal(randomKey(1, "codec-test"), values);
  return values;
}

std::vector<Tensor> sampleTensors() {
  std::vector<std::vector<float>> values = {{},           {-1.5f},         {-0.0f},
                                            {0.25f, -3},  {1, 2, 3, 4, 5}, normal(2 * 3 * 4 * 5),
                                            normal(1024), normal(2061)};
  values.emplace_back(100, 2.5f);  // constant
  values.emplace_back(100, -0.0f);
  values.emplace_back(normal(100)).back() = -kLargest;  // -inf in f16
  values.back().front() = kLargest;
  values.emplace_back(normal(100));  // subnormal, also in f16
  for (float& value : values.back()) value *= 1e-42f;
  std::vector<Tensor> tensors;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const std::vector<float>& sample : values) {
      Tensor tensor = tensorOf(sample, dtype);
      const std::vector<float> converted = valuesOf(tensor);
      const bool finite =
          std::all_of(converted.begin(), converted.end(), [](float x) { return std::isfinite(x); });
      if (finite) tensors.push_back(std::move(tensor));
    }
    Tensor image = tensorOf(normal(2 * 3 * 4 * 5), dtype);
    image.spec.shape = {2, 3, 4, 5};
    image.spec.order = MemoryOrder::channelsLast;
    tensors.push_back(image);
    Tensor scalar = tensorOf({0.5f}, dtype);
    scalar.spec.shape = {};
    tensors.push_back(scalar);
  }
  return tensors;
}

// Decodes bytes that no encoder need have produced. Returns whether they are refused; a refusal
// must state the key.
bool isRefused(const Codec& codec, const Bytes& bytes, const TensorSpec& spec) {
  try {
    decodeOver(std::byte{0xa5}, codec, bytes, spec);
    return false;
  } catch (const ProtocolError& error) {
    REQUIRE(error.code() == "bad-payload");
    REQUIRE_THAT(error.what(), Contains(codec.spec()) && Contains(toString(kKey)));
    return true;
  }
}

}  // namespace

TEST_CASE("the names in the codec table are unique, and each example matches its row") {
  std::vector<std::string_view> names;
  for (const CodecRow& row : codecTable()) {
    CHECK(std::find(names.begin(), names.end(), row.name) == names.end());
    names.push_back(row.name);
    CHECK(parseCodecSpec(row.example).name == row.name);
    CHECK_FALSE(row.description.empty());
  }
}

TEST_CASE("a codec's spec creates an equal codec") {
  for (const std::string& text : contractSpecs()) {
    const std::unique_ptr<Codec> codec = makeCodec(text);
    CHECK(codec->spec() == text);
    CHECK(makeCodec(codec->spec())->spec() == codec->spec());
    CHECK(codec->isIdentity() == (text == "none"));
  }
}

TEST_CASE("only the codec none accepts integers") {
  const TensorSpec integers{DType::i64, {3, 4}};
  for (const CodecRow& row : codecTable()) {
    const auto codec = makeCodec(std::string(row.example));
    CAPTURE(codec->spec());
    const auto accept = [&](const TensorSpec& spec) {
      return errorCode([&] { checkAccepts(*codec, spec, "activation/0.1"); });
    };
    CHECK(accept({DType::bf16, {3, 4}}).empty());
    CHECK(accept(integers) == (codec->spec() == "none" ? "" : "bad-codec-spec"));
  }
}

TEST_CASE("every codec encodes within its size limit, deterministically, and decodes the result") {
  for (const std::string& text : contractSpecs()) {
    const std::unique_ptr<Codec> codec = makeCodec(text);
    for (const Tensor& tensor : sampleTensors()) {
      INFO(text << " " << toString(tensor.spec));
      const Bytes bytes = encode(*codec, tensor);
      const Tensor decoded = decode(*codec, bytes, tensor.spec);
      CHECK((bytes.size() <= tensor.spec.bytes() + 3));  // the format bytes of nested codecs
      if (sizeIsFixed(*codec)) CHECK(bytes.size() == codec->maxEncodedBytes(tensor.spec));
      if (codec->isIdentity()) CHECK(bytes == tensor.bytes);
      if (codec->isIdentity()) CHECK(decoded.bytes == tensor.bytes);
    }
  }
}

TEST_CASE("a codec's size limit for fewer samples is no larger") {
  for (const std::string& text : contractSpecs()) {
    const std::unique_ptr<Codec> codec = makeCodec(text);
    for (const std::vector<std::int64_t>& sample :
         {std::vector<std::int64_t>{}, {7}, {3, 50}, {4, 6, 6}}) {
      TensorSpec spec{DType::f32, {0}};
      spec.shape.insert(spec.shape.end(), sample.begin(), sample.end());
      std::size_t before = 0;
      for (spec.shape[0] = 1; spec.shape[0] < 70; ++spec.shape[0]) {
        INFO(text << " " << toString(spec));
        const std::size_t max = codec->maxEncodedBytes(spec);
        REQUIRE(max >= before);
        before = max;
      }
    }
  }
}

TEST_CASE("every codec gives the same results with and without a helper thread") {
  ForkJoinPair helper;
  const std::vector<float> values = normal(2 * kMinPartElements + 5 * kStripElements + 77);
  for (const std::string& text : contractSpecs()) {
    const std::unique_ptr<Codec> codec = makeCodec(text);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      INFO(text << " " << dtypeName(dtype));
      const Tensor tensor = tensorOf(values, dtype);
      const Bytes bytes = encodeOver(std::byte{0}, *codec, tensor);
      REQUIRE((encodeOver(std::byte{0}, *codec, tensor, &helper) == bytes));
      const Tensor decoded = decodeOver(std::byte{0}, *codec, bytes, tensor.spec);
      const Tensor helped = decodeOver(std::byte{0xff}, *codec, bytes, tensor.spec, &helper);
      REQUIRE((helped.bytes == decoded.bytes));
    }
  }
}

TEST_CASE("every codec encodes non-finite values, or refuses them with the tensor's key") {
  for (const std::string& text : contractSpecs()) {
    const std::unique_ptr<Codec> codec = makeCodec(text);
    for (const float bad : {kNaN, kInfinity, -kInfinity}) {
      for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
        for (const std::size_t elements : {1, 3, 40, 1024, 1100}) {
          for (const std::size_t place : {std::size_t{0}, elements / 2, elements - 1}) {
            INFO(text << " with " << bad << " at " << place << " of " << elements);
            std::vector<float> values = normal(elements);
            values[place] = bad;
            const Tensor tensor = tensorOf(values, dtype);
            try {
              const float carried =
                  valuesOf(decode(*codec, encode(*codec, tensor), tensor.spec))[place];
              REQUIRE((std::isnan(bad) ? std::isnan(carried) : carried == bad));
            } catch (const NonFiniteError& error) {
              REQUIRE(error.code() == "non-finite");
              REQUIRE_THAT(error.what(), Contains(toString(kKey)));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a tensor that a codec cannot encode can be sent raw, and is decoded unchanged") {
  for (const std::string& text : contractSpecs()) {
    const std::unique_ptr<Codec> codec = makeCodec(text);
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (const std::size_t elements : {1, 3, 40, 1100}) {
        std::vector<float> values = normal(elements);
        values[elements / 2] = kNaN;
        values[elements / 3] = kInfinity;
        const Tensor tensor = tensorOf(values, dtype);
        INFO(text << " " << toString(tensor.spec));
        bool carries = true;
        try {
          encode(*codec, tensor);
        } catch (const NonFiniteError&) {
          carries = false;
        }
        if (carries) continue;
        Bytes raw(rawPayloadBytes(tensor.spec));
        REQUIRE(encodeRaw(tensor.view(), raw).bytes == raw.size());
        REQUIRE(decode(*codec, raw, tensor.spec).bytes == tensor.bytes);
        raw.pop_back();
        REQUIRE(isRefused(*codec, raw, tensor.spec));
      }
    }
  }
}

#ifdef CLEAVE_SANITIZED
constexpr std::size_t kLengths = 100;
#else
constexpr std::size_t kLengths = 300;
#endif

TEST_CASE("a payload cut short at any length, or one byte too long, is refused") {
  for (const std::string& text : contractSpecs()) {
    const std::unique_ptr<Codec> codec = makeCodec(text);
    for (const Tensor& tensor : sampleTensors()) {
      INFO(text << " " << toString(tensor.spec));
      const Bytes bytes = encode(*codec, tensor);
      const std::size_t stride = std::max<std::size_t>(bytes.size() / kLengths, 1);
      for (std::size_t length = 0; length < bytes.size(); length += stride) {
        const Bytes truncated(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
        REQUIRE(isRefused(*codec, truncated, tensor.spec));
      }
      Bytes longer = bytes;
      longer.push_back(std::byte{0});
      longer.shrink_to_fit();
      REQUIRE(isRefused(*codec, longer, tensor.spec));
    }
  }
}

TEST_CASE("a payload with any byte set to 0x00 or 0xff is refused or decoded in bounds") {
  for (const std::string& text : contractSpecs()) {
    const std::unique_ptr<Codec> codec = makeCodec(text);
    for (const std::size_t elements : {2, 50}) {
      const Tensor tensor = tensorOf(normal(elements));
      const Bytes bytes = encode(*codec, tensor);
      for (std::size_t place = 0; place < bytes.size(); ++place) {
        for (const std::byte value : {std::byte{0x00}, std::byte{0xff}}) {
          Bytes garbled = bytes;
          garbled[place] = value;
          isRefused(*codec, garbled, tensor.spec);  // the checks are inside isRefused()
        }
      }
    }
  }
}

TEST_CASE("a payload with randomly flipped bits is refused or decoded in bounds") {
  const RandomKey key = randomKey(2, "flips");
  std::uint64_t draw = 0;
  for (const std::string& text : contractSpecs()) {
    const std::unique_ptr<Codec> codec = makeCodec(text);
    for (const DType dtype : {DType::f32, DType::f16}) {
      const Tensor tensor = tensorOf(normal(77), dtype);
      const Bytes bytes = encode(*codec, tensor);
      for (int round = 0; round < 300; ++round) {
        Bytes garbled = bytes;
        for (int flip = 0; flip <= round % 8; ++flip) {
          const std::uint64_t bits = randomBits(key, draw++);
          garbled[(bits >> 8) % garbled.size()] ^= std::byte{1} << (bits % 8);
        }
        isRefused(*codec, garbled, tensor.spec);
      }
    }
  }
}

TEST_CASE("random bytes of any length are refused or decoded in bounds") {
  const RandomKey key = randomKey(3, "noise");
  std::uint64_t draw = 0;
  for (const std::string& text : contractSpecs()) {
    const std::unique_ptr<Codec> codec = makeCodec(text);
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (const std::int64_t elements : {0, 1, 2, 65, 200}) {
        const TensorSpec spec{dtype, {elements}};
        const std::size_t most = codec->maxEncodedBytes(spec) + 2;
        for (int round = 0; round < 60; ++round) {
          // A third of the inputs have the maximum size; two thirds have a valid format byte.
          Bytes noise(round % 3 == 0 ? most - 2 : randomBits(key, draw++) % (most + 1));
          for (std::byte& b : noise) b = static_cast<std::byte>(randomBits(key, draw++));
          if (!noise.empty() && round % 3 != 1) noise[0] = static_cast<std::byte>(round / 3 % 3);
          isRefused(*codec, noise, spec);
        }
      }
    }
  }
}

TEST_CASE("an unknown codec is refused with the nearest name and the list of codecs") {
  try {
    makeCodec("unifrom:bits=8");
    FAIL("no error");
  } catch (const UsageError& error) {
    CHECK(error.code() == "unknown-codec");
    CHECK(error.what() == std::string("'unifrom' is not a codec"));
    CHECK_THAT(error.hint(), Contains("did you mean uniform? use one of none, fp16, bf16"));
    for (const CodecRow& row : codecTable()) {
      CHECK_THAT(error.hint(), Contains(std::string(row.name)));
      CHECK_THAT(error.hint(), Contains(std::string(row.parameters)));
    }
  }
  CHECK_THROWS_AS(makeCodec(""), UsageError);
}

TEST_CASE("unknown parameters of a codec are refused") {
  const std::string text = GENERATE(
      "none:bits=8", "fp16:x=1", "bf16(none)", "uniform", "uniform:bits=0", "uniform:bits=17",
      "uniform:bit=8,bits=8", "uniform:bits=8(none)", "block", "block:bits=9",
      "block:bits=8,size=48", "block:bits=8,header=fp8", "block:bits=8,rounding=up",
      "block:bits=8,rotation=random", "block:bits=8(none)", "adaptive", "adaptive:bits=0.1",
      "adaptive:bits=9", "adaptive:bits=2,size=48", "sort:q=6", "sort:q=9,s=8", "sort:q=0,s=2",
      "sort:q=6,s=9", "sort:q=6,s=2,select=best", "fast:q=6,s=2,select=exact", "topk",
      "topk:ratio=0", "topk:ratio=1.5", "topk:ratio=x", "topk:ratio=nan", "randtopk:ratio=0.1",
      "randtopk:ratio=0.1,alpha=-1", "kmeans:bits=9", "kmeans:iterations=0", "power", "svd:rank=0",
      "svd:rank=1,iterations=2", "topk:ratio=0.1(none)");
  INFO(text);
  try {
    makeCodec(text);
    FAIL("no error");
  } catch (const UsageError& error) {
    CHECK(error.code() == "bad-codec-spec");
    CHECK_FALSE(error.hint().empty());
  }
}

TEST_CASE("slow codecs call checkpoint() while they run") {
  struct Row {
    std::string spec;
    std::vector<std::int64_t> shape;
  };
  const Row row = GENERATE(
      Row{"zstd:level=19(none)", {1 << 21}}, Row{"power:rank=256,iterations=100", {1, 1024, 1024}},
      Row{"svd:rank=8", {1, 512, 512}}, Row{"kmeans:bits=8,iterations=1000", {1 << 23}},
      Row{"sort:q=4,s=8,select=exact", {1 << 22}}, Row{"rans(none)", {1 << 22}});
  CAPTURE(row.spec);
  const std::unique_ptr<Codec> codec = makeCodec(row.spec);
  std::size_t elements = 1;
  for (const std::int64_t size : row.shape) elements *= static_cast<std::size_t>(size);
  std::vector<float> values(elements);
  fillNormal(randomKey(1, "checkpoints"), values);
  for (float& value : values) value = std::max(value, 0.0f);  // zeros, so that zstd can compress
  Tensor tensor = tensorOf(values);
  tensor.spec.shape = row.shape;
  Bytes out(codec->maxEncodedBytes(tensor.spec));

  // The task calls no checkpoint() after the codec, so only a call inside the codec can end it.
  CodecExecutor executor(1, 0.005);
  const auto queue = executor.open();
  std::promise<std::string> ended;
  queue->post([&] {
    CutContext cut;
    ended.set_value(errorCode([&] {
      codec->encode({7, kKey, nullptr, queue.get()}, nullptr, cut, tensor.view(), out);
    }));
  });
  CHECK(ended.get_future().get() == "codec-too-long");
}
