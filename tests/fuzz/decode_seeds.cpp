// Seeds for every codec: its own payloads, and tensors to encode.
#include "tests/fuzz/seeds.h"

#include "common/codec/sample_cache.h"
#include "common/core/random.h"
#include "compression/parts/convert.h"
#include "tests/fuzz/decode_input.h"
#include "tests/support/codecs/codec_specs.h"
#include "tests/support/copied.h"

namespace cleave::fuzz {
namespace {

struct Shape {
  std::uint8_t flags;  // data type and order
  std::uint8_t rank;
  std::array<std::uint8_t, 4> dimensions;
};

constexpr std::array kShapes = {
    Shape{0x00, 1, {0, 0}},           // an empty tensor
    Shape{0x10, 0, {}},               // a scalar, f16
    Shape{0x00, 1, {40, 0}},          //
    Shape{0x20, 1, {70, 0}},          // bf16
    Shape{kLast, 4, {2, 3, 4, 5}},    //
    Shape{0x10, 3, {2, 3, 5}},        //
    Shape{0x20, 1, {1100 % 256, 4}},  // more elements than a block
};

// Values of a bell curve, with repetitions and zeros.
Bytes elementsOf(const TensorSpec& spec) {
  std::vector<float> values(spec.elements());
  fillNormal(randomKey(1, "fuzz"), values);
  for (std::size_t j = 0; j < values.size(); j += 5) values[j] = j % 2 == 0 ? 0.0f : 6.0f;
  Bytes bytes(spec.bytes());
  fromFloat(values.data(), values.size(), spec.dtype, bytes.data());
  return bytes;
}

Bytes encode(const std::string& codecSpec, const Input& input, const Bytes& elements,
             CutContext& cut, Flow flow) {
  const std::unique_ptr<Codec> codec = makeCodec(codecSpec);
  const TensorSpec spec = specOf(input);
  Bytes payload(codec->maxEncodedBytes(spec));
  Key key = keyOf(input);
  key.flow = flow;
  const Encoded encoded = codec->encode({7, key}, nullptr, cut, {elements.data(), spec}, payload);
  payload.resize(encoded.bytes);
  return payload;
}

// The saved state after a training step; empty if the codec keeps none.
Bytes stateOf(const std::string& codecSpec, const Input& input, const Bytes& elements) {
  const std::unique_ptr<Codec> codec = makeCodec(codecSpec);
  if (codec->keepsSamples()) {
    SampleCache cache(kSamples);
    for (const std::uint32_t number : {3u, 0u, kSamples - 1}) {
      cache.replace(number, std::array{1.0f, -2.0f, 0.5f}, 1);
    }
    return copied(cache.save());
  }
  const TensorSpec spec = specOf(input);
  Bytes payload(codec->maxEncodedBytes(spec));
  CutContext cut;
  const Encoded encoded =
      codec->encode({7, keyOf(input)}, nullptr, cut, {elements.data(), spec}, payload);
  return codec->saveState(encoded.state);
}

}  // namespace

std::vector<Seed> seeds() {
  std::vector<Seed> all;
  for (const std::string& spec : test::contractSpecs()) {
    for (std::size_t j = 0; j < kShapes.size(); ++j) {
      Input input;
      input.flags = kShapes[j].flags;
      input.codec = input.activation = hashOf(spec);
      input.rank = kShapes[j].rank;
      input.dimensions = kShapes[j].dimensions;
      const Bytes elements = elementsOf(specOf(input));
      const auto add = [&](const char* what, const Bytes& rest) {
        input.rest = rest;
        all.push_back({spec + " " + std::to_string(j) + " " + what, write(input)});
      };
      CutContext cut;
      if (Bytes state = stateOf(spec, input, elements); !state.empty()) {
        Input restored = input;
        restored.rank |= kRestore;
        restored.activationBytes = static_cast<std::uint16_t>(state.size());
        state.insert(state.end(), elements.begin(), elements.end());
        restored.rest = state;
        all.push_back({spec + " " + std::to_string(j) + " restore", write(restored)});
      }
      Bytes payloads = encode(spec, input, elements, cut, activationAt(0));
      add("decode", payloads);
      // The gradient of the same cut.
      input.flags |= kGradient | kAfter;
      input.activationBytes = static_cast<std::uint16_t>(payloads.size());
      const Bytes gradient = encode(spec, input, elements, cut, gradientAt(0));
      payloads.insert(payloads.end(), gradient.begin(), gradient.end());
      add("decode gradient", payloads);
      // A few elements are enough, because they are repeated.
      input.flags |= kEncode;
      const Bytes few(elements.begin(),
                      elements.begin() +
                          static_cast<std::ptrdiff_t>(std::min<std::size_t>(elements.size(), 160)));
      input.activationBytes = static_cast<std::uint16_t>(few.size() / 2);
      add("encode", few);
    }
  }
  return all;
}

}  // namespace cleave::fuzz
