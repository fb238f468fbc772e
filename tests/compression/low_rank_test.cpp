// Compares the error of `power` and `svd` with that of the best approximation of the same rank.
#include <cmath>
#include <cstring>
#include <limits>

#include "common/core/random.h"
#include "compression/registry.h"
#include "tests/support/codecs/codec_tensors.h"
#include "tests/support/error_code.h"

using namespace cleave;
using namespace cleave::test;

namespace {

constexpr float kLargest = std::numeric_limits<float>::max();

std::vector<float> normal(std::size_t elements, std::uint64_t seed = 0) {
  std::vector<float> values(elements);
  fillNormal(randomKey(seed, "low-rank-test"), values);
  return values;
}

Tensor shaped(const std::vector<float>& values, std::vector<std::int64_t> shape,
              MemoryOrder order = MemoryOrder::contiguous, DType dtype = DType::f32) {
  Tensor tensor = tensorOf(values, dtype);
  tensor.spec.shape = std::move(shape);
  tensor.spec.order = order;
  return tensor;
}

// Samples of rows x columns values. Each sample is a sum of `rank` outer products with weights 1,
// 1/2, …
std::vector<float> ofRank(std::size_t samples, std::size_t rows, std::size_t columns,
                          std::size_t rank) {
  std::vector<float> values(samples * rows * columns);
  for (std::size_t b = 0; b < samples; ++b) {
    for (std::size_t r = 0; r < rank; ++r) {
      const std::vector<float> left = normal(rows, 100 * b + 2 * r);
      const std::vector<float> right = normal(columns, 100 * b + 2 * r + 1);
      for (std::size_t j = 0; j < rows * columns; ++j) {
        values[b * rows * columns + j] +=
            left[j / columns] * right[j % columns] / static_cast<float>(r + 1);
      }
    }
  }
  return values;
}

double relativeError(const Codec& codec, const Tensor& tensor) {
  return std::pow(10, -snr(codec, tensor) / 20);
}

}  // namespace

TEST_CASE(
    "matrices of at most the codec's rank are restored up to rounding, in either memory order") {
  const std::vector<float> values = ofRank(3, 16, 48, 3);
  const std::vector<float> last = ofRank(3, 48, 16, 3);
  for (const char* spec :
       {"svd:rank=3", "power:rank=3,iterations=3", "svd:rank=5", "power:rank=5,iterations=3"}) {
    INFO(spec);
    const std::unique_ptr<Codec> codec = makeCodec(spec);
    CHECK(relativeError(*codec, shaped(values, {3, 16, 6, 8})) < 1e-5);
    CHECK(relativeError(*codec, shaped(last, {3, 16, 6, 8}, MemoryOrder::channelsLast)) < 1e-5);
    CHECK(relativeError(*codec, shaped(values, {3, 16, 48})) < 1e-5);
    CHECK(relativeError(*codec, shaped(last, {3, 48, 16})) < 1e-5);
    for (const DType dtype : {DType::f16, DType::bf16}) {
      CHECK(relativeError(*codec, shaped(values, {3, 16, 48}, MemoryOrder::contiguous, dtype)) <
            0.02);
    }
  }
}

TEST_CASE("svd drops the smallest singular values, and power approximates the result of svd") {
  // The rows are orthogonal, so their norms are the singular values: 1, 1/2, 1/4, …
  std::vector<float> values(8 * 64);
  double left = 0, all = 0;
  for (std::size_t row = 0; row < 8; ++row) {
    const double weight = std::ldexp(1.0, -static_cast<int>(row));
    for (std::size_t j = row; j < 64; j += 8) values[row * 64 + j] = static_cast<float>(weight);
    (row < 3 ? all : left) += weight * weight;
  }
  const Tensor tensor = shaped(values, {1, 8, 64});
  const double best = std::sqrt(left / (all + left));
  CHECK(relativeError(*makeCodec("svd:rank=3"), tensor) == Approx(best).epsilon(1e-4));
  CHECK(relativeError(*makeCodec("power:rank=3,iterations=6"), tensor) < best * 1.02);
}

TEST_CASE("encoded sizes match the documented layout") {
  const Tensor tensor = shaped(normal(2 * 16 * 48), {2, 16, 6, 8});
  CHECK(encode(*makeCodec("svd:rank=3"), tensor).size() == 1 + 4 * 2 * 3 * (16 + 48));
  const std::size_t inner = (9 + 2 * 3 * 16) + (9 + 2 * 3 * 48);
  CHECK(encode(*makeCodec("power:rank=3(uniform:bits=8)"), tensor).size() == 1 + 8 + inner);
}

TEST_CASE("factors are encoded with the codec in parentheses") {
  const Tensor tensor = shaped(ofRank(2, 16, 48, 2), {2, 16, 6, 8});
  CHECK(relativeError(*makeCodec("power:rank=2(uniform:bits=8)"), tensor) < 0.05);
  CHECK(relativeError(*makeCodec("svd:rank=2(fp16)"), tensor) < 0.002);
  CHECK(makeCodec("power:rank=3(uniform:bits=8)")->spec() ==
        "power:rank=3,iterations=2(uniform:bits=8)");
  CHECK_THROWS_AS(makeCodec("power:rank=3(unform:bits=8)"), UsageError);
}

TEST_CASE("power starts from the factors of the previous step, in training only") {
  const std::unique_ptr<Codec> codec = makeCodec("power:rank=2,iterations=1");
  std::vector<float> values = ofRank(2, 16, 48, 6);
  const Tensor tensor = shaped(values, {2, 16, 6, 8});
  CodecContext context{7, kKey};
  CodecState state;
  std::vector<double> errors;
  for (context.key.step = 1; context.key.step <= 6; ++context.key.step) {
    CutContext cut;
    Bytes out(codec->maxEncodedBytes(tensor.spec));
    state = codec->encode(context, state, cut, tensor.view(), out).state;
    REQUIRE(state != nullptr);
    Tensor decoded{tensor.spec, Bytes(tensor.bytes.size())};
    codec->decode(context, nullptr, cut, out, {decoded.bytes.data(), decoded.spec});
    const std::vector<float> back = valuesOf(decoded);
    double noise = 0;
    for (std::size_t j = 0; j < back.size(); ++j) {
      noise += std::pow(double{values[j]} - double{back[j]}, 2);
    }
    errors.push_back(noise);
  }
  CHECK(errors.back() < 0.95 * errors.front());
  // A different shape resets the state; evaluation neither reads nor changes it.
  const Tensor other = shaped(normal(3 * 16 * 48), {3, 16, 6, 8});
  Bytes with(codec->maxEncodedBytes(other.spec)), without(with.size());
  CutContext cut;
  codec->encode(context, state, cut, other.view(), with);
  codec->encode(context, nullptr, cut, other.view(), without);
  CHECK((with == without));
  context.key.phase = Phase::eval;
  CHECK(codec->encode(context, state, cut, other.view(), with).state == nullptr);
}

TEST_CASE("after saving and restoring the state, the codec writes the same bytes") {
  const std::unique_ptr<Codec> codec = makeCodec("power:rank=2,iterations=1");
  const Tensor tensor = shaped(ofRank(2, 16, 48, 6), {2, 16, 6, 8});
  CodecContext context{7, kKey};
  const auto encoded = [&](const CodecState& state, Bytes& out) {
    CutContext cut;
    out.resize(codec->maxEncodedBytes(tensor.spec));
    return codec->encode(context, state, cut, tensor.view(), out).state;
  };
  Bytes first, whole, resumed, fresh;
  const CodecState state = encoded(nullptr, first);
  ++context.key.step;
  const std::vector<std::byte> saved = codec->saveState(state);
  encoded(state, whole);
  encoded(codec->restoreState(saved), resumed);
  encoded(nullptr, fresh);
  CHECK((resumed == whole));
  CHECK((fresh != whole));
  CHECK(codec->saveState(nullptr).empty());

  // Bytes that do not represent a state are refused.
  for (std::size_t length = 0; length < saved.size(); length += 7) {
    CHECK(errorCode([&] { codec->restoreState(std::span(saved).first(length)); }) ==
          "bad-checkpoint");
  }
  std::vector<std::byte> huge = saved;
  for (std::size_t b = 8; b < 24; ++b) huge[b] = std::byte{0xff};
  CHECK(errorCode([&] { codec->restoreState(huge); }) == "bad-checkpoint");
  for (const float feature : {1e30f, std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<std::byte> large = saved;
    std::memcpy(large.data() + 24, &feature, sizeof feature);
    CHECK(errorCode([&] { codec->restoreState(large); }) == "bad-checkpoint");
  }
  CHECK(errorCode([&] { makeCodec("svd:rank=2")->restoreState(saved); }) == "bad-checkpoint");
  CHECK(errorCode([&] { makeCodec("none")->restoreState(saved); }) == "bad-checkpoint");
}

TEST_CASE("zeros, constants and values near the limits of fp32 stay finite") {
  for (const char* spec : {"svd:rank=2", "power:rank=2,iterations=2"}) {
    const std::unique_ptr<Codec> codec = makeCodec(spec);
    for (const float constant : {0.0f, 1.5f, kLargest, -kLargest, 1e-44f}) {
      INFO(spec << " " << constant);
      const Tensor tensor = shaped(std::vector<float>(2 * 8 * 16, constant), {2, 8, 16});
      for (const float x : valuesOf(decode(*codec, encode(*codec, tensor), tensor.spec))) {
        REQUIRE(std::isfinite(x));
        REQUIRE(std::abs(double{x} - double{constant}) <=
                std::abs(double{constant}) * 1e-5 + 1e-44);
      }
    }
  }
}

TEST_CASE("tensors whose samples are no matrices, or small ones, are sent unchanged") {
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{{64}, {8, 8}, {16, 2, 2}}) {
    const Tensor tensor = shaped(normal(64), shape);
    const Bytes bytes = encode(*makeCodec("svd:rank=2"), tensor);
    CHECK(bytes[0] == std::byte{0});
    CHECK((decode(*makeCodec("svd:rank=2"), bytes, tensor.spec).bytes == tensor.bytes));
  }
}

TEST_CASE("NaN in a tensor or a factor, and wrong lengths, are refused") {
  std::vector<float> values = normal(2 * 16 * 48);
  const Tensor good = shaped(values, {2, 16, 48});
  values[700] = std::nanf("");
  const Tensor bad = shaped(values, {2, 16, 48});
  for (const char* spec : {"svd:rank=2", "power:rank=2", "power:rank=2(fp16)"}) {
    const std::unique_ptr<Codec> codec = makeCodec(spec);
    CHECK_THROWS_AS(encode(*codec, bad), NonFiniteError);
    const Bytes bytes = encode(*codec, good);
    Bytes garbled = bytes;
    for (std::size_t j = bytes.size() - 4; j < bytes.size(); ++j) garbled[j] = std::byte{0xff};
    CHECK_THROWS_AS(decode(*codec, garbled, good.spec), ProtocolError);
    garbled = bytes;
    garbled[0] = std::byte{2};
    CHECK_THROWS_AS(decode(*codec, garbled, good.spec), ProtocolError);
  }
  const std::unique_ptr<Codec> codec = makeCodec("power:rank=2(fp16)");
  for (const std::uint64_t length : {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}}) {
    Bytes bytes = encode(*codec, good);
    std::memcpy(&bytes[1], &length, sizeof length);
    CHECK_THROWS_AS(decode(*codec, bytes, good.spec), ProtocolError);
  }
}
