// nonzero(CODEC): leaves out the features that are zero in the whole tensor.
#include <cstring>
#include <limits>
#include <set>
#include <string>

#include "common/codec/raw.h"
#include "common/core/random.h"
#include "compression/registry.h"
#include "tests/support/codec_tensors.h"
#include "tests/support/error_code.h"

namespace cleave::test {
namespace {

struct Form {
  std::vector<std::int64_t> shape;
  MemoryOrder order = MemoryOrder::contiguous;
};

const std::vector<Form> kForms = {{{2, 11, 3, 5}},    {{2, 11, 3, 5}, MemoryOrder::channelsLast},
                                  {{30, 11}},         {{3, 10, 11}},
                                  {{2, 3, 1, 5, 11}}, {{11}}};
constexpr std::size_t kFeatures = 11;

// The feature of element j of the tensor's memory.
std::size_t featureOf(std::size_t j, const TensorSpec& spec) {
  const bool areRows = spec.shape.size() == 4 && spec.order == MemoryOrder::contiguous;
  return (areRows ? j / static_cast<std::size_t>(spec.shape[2] * spec.shape[3]) : j) % kFeatures;
}

using Features = std::set<std::size_t>;

// Random values; `zeros` are the features that are zero, with both signs.
Tensor tensorWith(const Form& form, const Features& zeros, DType dtype = DType::f32) {
  Tensor tensor{{dtype, form.shape, form.order}, {}};
  std::vector<float> values(tensor.spec.elements());
  fillNormal(randomKey(1, "nonzero-test"), values);
  for (std::size_t j = 0; j < values.size(); ++j) {
    if (zeros.contains(featureOf(j, tensor.spec))) values[j] = j % 2 == 0 ? 0.0f : -0.0f;
  }
  tensor.bytes = tensorOf(values, dtype).bytes;
  return tensor;
}

// The tensor without the features `zeros`, element by element.
Tensor without(const Tensor& tensor, const Features& zeros) {
  const std::vector<float> values = valuesOf(tensor);
  std::vector<float> kept;
  for (std::size_t j = 0; j < values.size(); ++j) {
    if (!zeros.contains(featureOf(j, tensor.spec))) kept.push_back(values[j]);
  }
  Tensor result = tensorOf(kept, tensor.spec.dtype);
  result.spec = tensor.spec;
  result.spec.shape[result.spec.shape.size() == 4 ? 1 : result.spec.shape.size() - 1] -=
      static_cast<std::int64_t>(zeros.size());
  return result;
}

Bytes headOf(const Features& zeros) {
  Bytes head(1 + (kFeatures + 7) / 8);
  head[0] = std::byte{2};
  for (std::size_t f = 0; f < kFeatures; ++f) {
    if (!zeros.contains(f)) head[1 + f / 8] |= std::byte{1} << (f % 8);
  }
  return head;
}

TEST_CASE("the payload has one bit per feature, then CODEC's payload of the kept ones") {
  for (const std::string name : {"block:bits=4", "none", "topk:ratio=0.5"}) {
    const auto inner = makeCodec(name), codec = makeCodec("nonzero(" + name + ")");
    for (const Form& form : kForms) {
      // With one value per feature, the bits take more than block and topk save.
      if (form.shape.size() == 1 && name != "none") continue;
      for (const Features& zeros :
           {Features{0, 1, 2, 3}, {1, 4, 5, 6, 9}, {2, 3, 4, 5, 6, 7, 8, 9, 10}}) {
        for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
          const Tensor tensor = tensorWith(form, zeros, dtype);
          INFO(name << " " << toString(tensor.spec) << ", " << zeros.size() << " features are 0");
          const Tensor kept = without(tensor, zeros);
          Bytes expected = headOf(zeros);
          const Bytes payload = encode(*inner, kept);
          expected.insert(expected.end(), payload.begin(), payload.end());
          REQUIRE((encode(*codec, tensor) == expected));

          const Tensor decoded = decode(*codec, expected, tensor.spec);
          CHECK((without(decoded, zeros).bytes == decode(*inner, payload, kept.spec).bytes));
          const std::vector<float> values = valuesOf(decoded);
          for (std::size_t j = 0; j < values.size(); ++j) {
            if (!zeros.contains(featureOf(j, tensor.spec))) continue;
            REQUIRE((values[j] == 0 && !std::signbit(values[j])));
          }
        }
      }
    }
  }
}

TEST_CASE("a tensor without zero features is encoded by CODEC as it is") {
  const auto inner = makeCodec("block:bits=4"), codec = makeCodec("nonzero(block:bits=4)");
  for (const Form& form : kForms) {
    Tensor tensor = tensorWith(form, {});
    Bytes expected = {std::byte{1}};
    const Bytes payload = encode(*inner, tensor);
    expected.insert(expected.end(), payload.begin(), payload.end());
    CHECK((encode(*codec, tensor) == expected));
  }
  // One element that is not zero is enough to keep its feature, whatever its position.
  const Form form{{30, 11}};
  for (const std::size_t row : {0, 17, 29}) {
    Tensor tensor = tensorWith(form, {4, 5});
    const float least = -std::numeric_limits<float>::denorm_min();
    std::memcpy(tensor.bytes.data() + (row * kFeatures + 5) * sizeof(float), &least, sizeof least);
    CHECK((encode(*makeCodec("nonzero(none)"), tensor)[1] == std::byte{0b11101111}));
  }
}

TEST_CASE("a tensor of zeros takes one bit per feature") {
  for (const Form& form : kForms) {
    const Tensor tensor = tensorWith(form, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
    const auto codec = makeCodec("nonzero(power:rank=2,iterations=1)");
    const Bytes bytes = encode(*codec, tensor);
    CHECK((bytes == Bytes{std::byte{2}, std::byte{0}, std::byte{0}}));
    for (const float value : valuesOf(decode(*codec, bytes, tensor.spec))) REQUIRE(value == 0);
  }
}

TEST_CASE("features are left out only if that makes the payload shorter") {
  // 800 features with one value each: bits for all features take 100 bytes, the zeros 8 x 4 bytes.
  std::vector<float> values(800, 1.5f);
  std::fill_n(values.begin(), 8, 0.0f);
  const auto codec = makeCodec("nonzero(none)");
  CHECK((encode(*codec, tensorOf(values))[0] == std::byte{1}));
  std::fill_n(values.begin(), 26, 0.0f);
  const Bytes bytes = encode(*codec, tensorOf(values));
  CHECK((bytes[0] == std::byte{2}));
  CHECK(bytes.size() == 1 + 100 + 774 * 4);
}

TEST_CASE("a feature with a NaN is not zero") {
  Tensor tensor = tensorWith({{30, 11}}, {1, 4});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(tensor.bytes.data() + 4 * sizeof nan, &nan, sizeof nan);
  const auto codec = makeCodec("nonzero(none)");
  CHECK(std::isnan(valuesOf(decode(*codec, encode(*codec, tensor), tensor.spec))[4]));
  CHECK(errorCode([&] { encode(*makeCodec("nonzero(block:bits=4)"), tensor); }) == "non-finite");
}

TEST_CASE("payloads with wrong bits, or values that do not fit them, are refused") {
  const Features zeros = {1, 4, 5, 6, 9};
  const Tensor tensor = tensorWith({{2, 11, 3, 5}}, zeros);
  for (const std::string name : {"nonzero(block:bits=4)", "nonzero(none)", "rans(nonzero(none))"}) {
    const auto codec = makeCodec(name);
    const bool isWrapped = name.starts_with("rans");
    const std::size_t at = isWrapped ? 1 : 0;  // rans stores incompressible payloads
    const Bytes bytes = encode(*codec, tensor);
    if (isWrapped && bytes[0] != std::byte{1}) continue;
    const auto refuses = [&](const Bytes& payload) {
      return errorCode([&] { decode(*codec, payload, tensor.spec); }) == "bad-payload";
    };
    INFO(name);
    for (std::size_t bit = 0; bit < 16; ++bit) {  // a feature more or less, or a padding bit
      Bytes flipped = bytes;
      flipped[at + 1 + bit / 8] ^= std::byte{1} << (bit % 8);
      CHECK(refuses(flipped));
    }
    Bytes none = bytes;
    none[at + 1] = none[at + 2] = std::byte{0};
    CHECK(refuses(none));
    for (const int format : {0, 1, 3, 255}) {
      Bytes other = bytes;
      other[at] = static_cast<std::byte>(format);
      CHECK(refuses(other));
    }
  }
  // All features are kept: longer than any payload that the encoder writes.
  Bytes all = headOf({});
  all.insert(all.end(), tensor.bytes.begin(), tensor.bytes.end());
  CHECK(errorCode([&] { decode(*makeCodec("nonzero(none)"), all, tensor.spec); }) == "bad-payload");
}

TEST_CASE("codecs that depend on earlier tensors, and svd, cannot be wrapped by nonzero") {
  for (const std::string spec : {"nonzero", "nonzero:bits=4(none)", "nonzero(ef(block:bits=4))",
                                 "nonzero(rans(delta(block:bits=4)))", "nonzero(svd:rank=2)"}) {
    INFO(spec);
    CHECK(errorCode([&] { makeCodec(spec); }) == "bad-codec-spec");
  }
  CHECK(makeCodec("zstd:level=1(ef(nonzero(block:bits=4)))") != nullptr);
}

}  // namespace
}  // namespace cleave::test
