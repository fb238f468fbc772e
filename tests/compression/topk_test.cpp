// Compares `topk` and `randtopk` with a simple implementation that sorts. Also tests that a
// gradient reuses the positions of its activation.
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "common/core/random.h"
#include "compression/kernels/pieces.h"
#include "compression/registry.h"
#include "tests/support/codecs/codec_tensors.h"

using namespace cleave;
using namespace cleave::test;

namespace {

const CodecContext kActivation{7, {Phase::train, 3, 1, activationAt(0)}};
const CodecContext kGradient{7, {Phase::train, 3, 1, gradientAt(0)}};

std::vector<float> normal(std::size_t elements, std::uint64_t seed = 0) {
  std::vector<float> values(elements);
  fillNormal(randomKey(seed, "topk-test"), values);
  return values;
}

std::vector<float> sample(int kind, std::size_t elements, std::uint64_t seed) {
  std::vector<float> values = normal(elements, seed);
  for (float& x : values) {
    if (kind == 1) x = std::nearbyint(x);
    if (kind == 2) x = x < 0 ? -0.0f : x;
    if (kind == 3) x = x * x * x * x * x;
    if (kind == 4) x = std::copysign(1.0f, x);
  }
  return values;
}

std::size_t keptOf(double ratio, std::size_t elements) {
  return static_cast<std::size_t>(std::ceil(ratio * static_cast<double>(elements)));
}

// Computes the expected decoded values by sorting.
std::vector<float> oracle(const std::vector<float>& values, double ratio) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::abs(values[a]) > std::abs(values[b]);
  });
  std::vector<float> kept(values.size());
  for (std::size_t k = 0; k < keptOf(ratio, values.size()); ++k) kept[order[k]] = values[order[k]];
  return kept;
}

Bytes encodeWith(const Codec& codec, const CodecContext& context, CutContext& cut,
                 const Tensor& tensor) {
  Bytes out(codec.maxEncodedBytes(tensor.spec));
  const Encoded encoded = codec.encode(context, nullptr, cut, tensor.view(), out);
  out.resize(encoded.bytes);
  return out;
}

Tensor decodeWith(const Codec& codec, const CodecContext& context, CutContext& cut,
                  const Bytes& bytes, const TensorSpec& spec) {
  Tensor tensor{spec, Bytes(spec.bytes())};
  codec.decode(context, nullptr, cut, bytes, {tensor.bytes.data(), spec});
  return tensor;
}

std::vector<std::size_t> nonZeros(const std::vector<float>& values) {
  std::vector<std::size_t> places;
  for (std::size_t j = 0; j < values.size(); ++j) {
    if (values[j] != 0) places.push_back(j);
  }
  return places;
}

}  // namespace

TEST_CASE("the largest magnitudes are kept unchanged, and among equal ones the first are kept") {
  for (const double ratio : {0.01, 0.1, 0.3, 0.5, 0.9}) {
    const std::unique_ptr<Codec> codec = makeCodec("topk:ratio=" + shortestText(ratio));
    for (int kind = 0; kind < 5; ++kind) {
      for (const std::size_t elements : {33, 64, 1000, 1024, 5000, 30001}) {
        for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
          INFO(ratio << ", kind " << kind << ", " << elements << " elements");
          const Tensor tensor = tensorOf(sample(kind, elements, elements), dtype);
          const Bytes bytes = encode(*codec, tensor);
          if (bytes[0] == std::byte{0}) continue;
          const Tensor expected = tensorOf(oracle(valuesOf(tensor), ratio), dtype);
          const bool same = decode(*codec, bytes, tensor.spec).bytes == expected.bytes;
          REQUIRE(same);
        }
      }
    }
  }
}

TEST_CASE("a small tensor is encoded in the documented layout") {
  std::vector<float> values(40);
  values[3] = 1;
  values[5] = -2;
  values[33] = 0.5;
  const Bytes bytes = encode(*makeCodec("topk:ratio=0.05"), tensorOf(values));
  const std::vector<int> expected = {2, 0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0, 3, 1};
  REQUIRE(bytes.size() == expected.size());
  for (std::size_t j = 0; j < bytes.size(); ++j)
    CHECK(std::to_integer<int>(bytes[j]) == expected[j]);
  std::vector<float> more(40);
  std::iota(more.begin(), more.end(), 1.0f);
  const Bytes bitmap = encode(*makeCodec("topk:ratio=0.25"), tensorOf(more));
  REQUIRE(bitmap.size() == 1 + 40 + 5);
  CHECK(bitmap[0] == std::byte{1});
  CHECK(bitmap[41 + 3] == std::byte{0xc0});
  CHECK(bitmap[41 + 4] == std::byte{0xff});
}

TEST_CASE("every instruction set keeps the same elements") {
  const std::int64_t sets = instructionSets();
  for (int kind = 0; kind < 5; ++kind) {
    const Tensor tensor = tensorOf(sample(kind, 5003, 1));
    const Bytes bytes = encode(*makeCodec("topk:ratio=0.3"), tensor);
    for (std::int64_t set = 1; set != 0 && set <= sets; set <<= 1) {
      if (!(sets & set)) continue;
      chooseInstructionSets(set);
      const bool same = encode(*makeCodec("topk:ratio=0.3"), tensor) == bytes;
      chooseInstructionSets(0);
      REQUIRE(same);
    }
  }
}

TEST_CASE("distances beyond one byte survive the round trip") {
  std::vector<float> values(70000);
  for (const std::size_t j : {0u, 127u, 128u, 256u, 20000u, 69999u, 300u}) values[j] = 1;
  const std::unique_ptr<Codec> codec = makeCodec("topk:ratio=0.0001");
  const Tensor tensor = tensorOf(values);
  const Bytes bytes = encode(*codec, tensor);
  CHECK(bytes[0] == std::byte{2});
  CHECK((decode(*codec, bytes, tensor.spec).bytes == tensor.bytes));
}

TEST_CASE("a gradient reuses its activation's positions and does not send them") {
  for (const char* spec : {"topk:ratio=0.2", "randtopk:ratio=0.2,alpha=0.3"}) {
    const std::unique_ptr<Codec> codec = makeCodec(spec);
    const Tensor activation = tensorOf(normal(3000, 1));
    const Tensor gradient = tensorOf(normal(3000, 2));
    CutContext here, there;
    const Bytes forward = encodeWith(*codec, kActivation, here, activation);
    const Tensor decoded = decodeWith(*codec, kActivation, there, forward, activation.spec);
    const Bytes backward = encodeWith(*codec, kGradient, there, gradient);
    CHECK(backward.size() == 1 + 600 * 4);
    const std::vector<float> received =
        valuesOf(decodeWith(*codec, kGradient, here, backward, gradient.spec));
    const std::vector<float> mask = valuesOf(decoded);
    const std::vector<float> sent = valuesOf(gradient);
    bool same = true;
    for (std::size_t j = 0; j < 3000; ++j)
      same = same && received[j] == (mask[j] != 0 ? sent[j] : 0);
    CHECK(same);
    CHECK(nonZeros(mask).size() == 600);
  }
}

TEST_CASE(
    "a gradient selects its own positions if it keeps fewer elements or has a different shape") {
  CutContext cut;
  encodeWith(*makeCodec("topk:ratio=0.2"), kActivation, cut, tensorOf(normal(3000)));
  const Tensor gradient = tensorOf(normal(3000, 2));
  const std::unique_ptr<Codec> fewer = makeCodec("topk:ratio=0.1");
  CHECK((encodeWith(*fewer, kGradient, cut, gradient) == encode(*fewer, gradient)));
  const Tensor other = tensorOf(normal(2999, 2));
  const std::unique_ptr<Codec> same = makeCodec("topk:ratio=0.2");
  CHECK((encodeWith(*same, kGradient, cut, other) == encode(*same, other)));
}

TEST_CASE("evaluation keeps no positions for a gradient and draws no random numbers") {
  const CodecContext eval{7, {Phase::eval, 3, 1, activationAt(0)}};
  const Tensor tensor = tensorOf(normal(3000));
  CutContext cut;
  const Bytes bytes = encodeWith(*makeCodec("randtopk:ratio=0.2,alpha=0.5"), eval, cut, tensor);
  CHECK(cut.value == nullptr);
  CHECK((bytes == encodeWith(*makeCodec("topk:ratio=0.2"), eval, cut, tensor)));
}

TEST_CASE(
    "randtopk keeps k elements, and a random fraction alpha of them is not among the largest") {
  const std::vector<float> values = normal(50000);
  const std::vector<float> top = oracle(values, 0.2);
  for (const double alpha : {0.05, 0.5, 1.0}) {
    const std::unique_ptr<Codec> codec =
        makeCodec("randtopk:ratio=0.2,alpha=" + shortestText(alpha));
    CodecContext context = kActivation;
    std::vector<float> before;
    for (context.key.step = 1; context.key.step <= 3; ++context.key.step) {
      CutContext cut;
      const Bytes bytes = encodeWith(*codec, context, cut, tensorOf(values));
      const std::vector<float> decoded =
          valuesOf(decodeWith(*codec, context, cut, bytes, tensorOf(values).spec));
      CHECK(nonZeros(decoded).size() == 10000);
      std::size_t replaced = 0;
      for (const std::size_t j : nonZeros(decoded)) replaced += top[j] == 0 ? 1 : 0;
      CHECK(std::abs(static_cast<double>(replaced) / 10000 - alpha) < 0.02);
      CHECK((decoded != before));
      before = decoded;
    }
  }
}

TEST_CASE("positions that do not select k elements are refused") {
  const std::unique_ptr<Codec> codec = makeCodec("topk:ratio=0.25");
  std::vector<float> values(40);
  std::iota(values.begin(), values.end(), 1.0f);
  const Tensor tensor = tensorOf(values);
  const Bytes good = encode(*codec, tensor);
  Bytes bytes = good;
  bytes[41] = std::byte{1};  // adds an 11th position
  CHECK_THROWS_AS(decode(*codec, bytes, tensor.spec), ProtocolError);
  bytes = good;
  bytes[44] = std::byte{0x80};  // leaves only 9 positions
  CHECK_THROWS_AS(decode(*codec, bytes, tensor.spec), ProtocolError);
  // A distance beyond the tensor's end, and a distance whose encoding does not end.
  const std::unique_ptr<Codec> sparse = makeCodec("topk:ratio=0.05");
  for (const std::byte bad : {std::byte{40}, std::byte{0x7f}, std::byte{0xff}}) {
    bytes = encode(*sparse, tensor);
    REQUIRE(bytes[0] == std::byte{2});
    bytes.back() = bad;
    CHECK_THROWS_AS(decode(*sparse, bytes, tensor.spec), ProtocolError);
  }
}

TEST_CASE("a value that is not finite is refused") {
  const std::unique_ptr<Codec> codec = makeCodec("topk:ratio=0.25");
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const Tensor tensor = tensorOf(normal(100), dtype);
    Bytes bytes = encode(*codec, tensor);
    const std::size_t width = dtypeBytes(dtype);
    bytes[1 + width - 1] = std::byte{0xff};
    bytes[1 + width - 2] = std::byte{0x80};
    if (dtype == DType::f16) bytes[1 + width - 1] = std::byte{0x7c};
    CHECK_THROWS_AS(decode(*codec, bytes, tensor.spec), ProtocolError);
  }
}
