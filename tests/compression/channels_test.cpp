// channels(CODEC): encodes a tensor in the order of its features.
#include <cmath>
#include <cstring>
#include <string>

#include "common/codec/raw.h"
#include "common/core/random.h"
#include "compression/registry.h"
#include "tests/support/codecs/codec_tensors.h"
#include "tests/support/error_code.h"

namespace cleave::test {
namespace {

struct Form {
  std::vector<std::int64_t> shape;
  MemoryOrder order = MemoryOrder::contiguous;
  std::size_t inner = 1;  // adjacent values of a feature
};

const std::vector<Form> kForms = {{{2, 11, 3, 5}, MemoryOrder::contiguous, 15},
                                  {{2, 11, 3, 5}, MemoryOrder::channelsLast},
                                  {{70, 11}},
                                  {{3, 10, 11}},
                                  {{2, 3, 1, 5, 11}},
                                  {{11}}};
constexpr std::size_t kFeatures = 11;

// Normal values; `scale` multiplies those of each feature by the next power of this number.
Tensor tensorOf(const Form& form, double scale, DType dtype = DType::f32) {
  Tensor tensor{{dtype, form.shape, form.order}, {}};
  std::vector<float> values(tensor.spec.elements());
  fillNormal(randomKey(1, "channels-test"), values);
  for (std::size_t j = 0; j < values.size(); ++j) {
    const std::size_t feature = j / form.inner % kFeatures;
    values[j] *= static_cast<float>(std::pow(scale, feature));
  }
  tensor.bytes = test::tensorOf(values, dtype).bytes;
  return tensor;
}

TEST_CASE("the payload is that of the tensor in the order of its features") {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const Form& form : kForms) {
      const Tensor tensor = tensorOf(form, 1.1, dtype);
      const std::vector<float> values = valuesOf(tensor);
      std::vector<float> reordered;
      for (std::size_t feature = 0; feature < kFeatures; ++feature) {
        for (std::size_t j = 0; j < values.size(); ++j) {
          if (j / form.inner % kFeatures == feature) reordered.push_back(values[j]);
        }
      }
      Tensor expected = test::tensorOf(reordered, dtype);
      expected.spec.shape = {kFeatures, static_cast<std::int64_t>(values.size() / kFeatures)};
      for (const std::string name : {"none", "block:bits=4", "adaptive:bits=2", "topk:ratio=0.3"}) {
        INFO(name << ", " << toString(tensor.spec));
        const auto codec = makeCodec("channels(" + name + ")");
        const Bytes payload = encode(*codec, tensor);
        REQUIRE(payload.front() == std::byte{1});
        CHECK((Bytes(payload.begin() + 1, payload.end()) == encode(*makeCodec(name), expected)));
        const Tensor decoded = decode(*codec, payload, tensor.spec);
        if (name == "none") CHECK((decoded.bytes == tensor.bytes));
      }
    }
  }
}

TEST_CASE("features of different scale are more accurate with the same number of bytes") {
  const Form form{{16, 11, 8, 8}, MemoryOrder::channelsLast};
  const Tensor tensor = tensorOf(form, 4);
  for (const std::string name : {"block:bits=4", "adaptive:bits=2"}) {
    const auto errorWith = [&](const std::string& spec) {
      const auto codec = makeCodec(spec);
      const std::vector<float> values = valuesOf(tensor);
      const std::vector<float> decoded =
          valuesOf(decode(*codec, encode(*codec, tensor), tensor.spec));
      double sum = 0;  // of the features' relative errors
      for (std::size_t feature = 0; feature < kFeatures; ++feature) {
        double signal = 0, noise = 0;
        for (std::size_t j = feature; j < values.size(); j += kFeatures) {
          signal += std::pow(values[j], 2);
          noise += std::pow(values[j] - decoded[j], 2);
        }
        sum += noise / signal;
      }
      return sum;
    };
    CHECK(errorWith("channels(" + name + ")") < 0.5 * errorWith(name));
  }
}

TEST_CASE("damaged payloads are refused, and tensors may be sent raw") {
  const auto codec = makeCodec("channels(block:bits=4)");
  const Tensor tensor = tensorOf(kForms[1], 2);
  Bytes payload = encode(*codec, tensor);
  const auto refusal = [&](const Bytes& bytes) {
    return errorCode([&] { decode(*codec, bytes, tensor.spec); });
  };
  CHECK(refusal({}) == "bad-payload");
  payload.push_back(std::byte{0});
  CHECK(refusal(payload) == "bad-payload");
  payload.resize(payload.size() - 2);
  CHECK(refusal(payload) == "bad-payload");
  payload.front() = std::byte{2};
  CHECK(refusal(payload) == "bad-payload");

  Bytes raw(rawPayloadBytes(tensor.spec));
  encodeRaw(tensor.view(), raw);
  CHECK((decode(*codec, raw, tensor.spec).bytes == tensor.bytes));
}

TEST_CASE("codecs that encode each sample, or depend on earlier tensors, cannot be wrapped") {
  for (const std::string spec :
       {"channels", "channels(delta(block:bits=4))", "channels(power:rank=2)",
        "channels(rans(svd:rank=2))", "channels(fast:q=6,s=2)"}) {
    CHECK(errorCode([&] { makeCodec(spec); }) == "bad-codec-spec");
  }
  CHECK(makeCodec("delta(channels(block:bits=4))") != nullptr);
}

}  // namespace
}  // namespace cleave::test
