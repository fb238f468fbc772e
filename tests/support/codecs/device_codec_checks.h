// The contract of GPU codecs: the same bytes, tensors and refusals as the CPU codecs. Tested with
// an emulated GPU everywhere, and with a real one in cuda_test.
#pragma once

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "common/core/random.h"
#include "compression/device/gpu.h"
#include "tests/support/codecs/codec_specs.h"
#include "tests/support/codecs/codec_tensors.h"

namespace cleave::test {

inline std::vector<std::string> deviceSpecs() {
  std::vector<std::string> specs = contractSpecs();
  for (const char* spec :
       {"uniform:bits=2", "uniform:bits=5", "uniform:bits=7", "uniform:bits=11", "block:bits=4",
        "block:bits=6,size=256,header=fp16", "block:bits=8,size=512", "block:bits=2,size=1024",
        "block:bits=4,size=32,rounding=stochastic", "sort:q=4,s=0", "sort:q=5,s=3", "sort:q=2,s=8",
        "sort:q=12,s=4", "topk:ratio=0.1", "topk:ratio=0.2", "topk:ratio=0.001"})
    specs.emplace_back(spec);
  return specs;
}

inline std::vector<float> deviceValues(int kind, std::size_t elements) {
  constexpr float kMax = std::numeric_limits<float>::max();
  std::vector<float> values(elements);
  fillNormal(randomKey(static_cast<std::uint64_t>(kind), "device-codec", {elements}), values);
  for (std::size_t j = 0; j < elements; ++j) {
    float& x = values[j];
    if (kind == 1) x = std::min(std::max(x, -0.0f), 1.5f);  // ReLU, negative zeros
    if (kind == 2) x = -0.1f;                               // constant
    if (kind == 3) x = std::nearbyint(2 * x) / 2;           // ties
    if (kind == 4) x = x * x * x * std::ldexp(1.0f, -static_cast<int>(j / 100 % 100));
    if (kind == 5) x *= 1e-41f;                    // subnormal
    if (kind == 6) x = j % 3 == 0 ? kMax : -kMax;  // beyond fp32's range
    if (kind == 7)
      x = j % 1000 == 999 ? (j % 2 ? kMax : -kMax) : x;  // beyond fp32's range in some blocks only
    if (kind == 8) x = 1000 + x;
    if (kind == 9) x = j % 2 ? -0.0f : 0.0f;
  }
  return values;
}
inline constexpr int kValueKinds = 10;

// The complete result of encoding a tensor. The payload is empty if the tensor was refused.
struct Outcome {
  std::optional<Bytes> bytes;
  CutContext cut;
};

inline Outcome encodeOutcome(const Codec& codec, const CodecContext& context, CutContext cut,
                             const TensorView& view) {
  const std::size_t max = codec.maxEncodedBytes(view.spec);
  Bytes out(max + 64, std::byte{0x5a});
  Outcome outcome{std::nullopt, std::move(cut)};
  try {
    const Encoded encoded = codec.encode(context, nullptr, outcome.cut, view, {out.data(), max});
    REQUIRE(std::all_of(out.begin() + static_cast<std::ptrdiff_t>(max), out.end(),
                        [](std::byte b) { return b == std::byte{0x5a}; }));
    out.resize(encoded.bytes);
    outcome.bytes = std::move(out);
  } catch (const NonFiniteError&) {
  }
  return outcome;
}

// A tensor on the GPU.
class DeviceTensor {
 public:
  DeviceTensor(Gpu& gpu, const TensorSpec& spec, const Bytes& bytes)
      : gpu_(gpu), spec_(spec), owner_(gpu.tensorMemory(bytes.size() + 1)) {
    if (bytes.empty()) return;
    gpu_.copyIn(bytes.data(), bytes.size(), owner_.get());
    gpu_.wait();
  }
  TensorView view() const { return {owner_.get(), spec_, MemoryPlace::device}; }
  MutableTensorView out() const { return {owner_.get(), spec_}; }
  Bytes read() const {
    Bytes bytes(spec_.bytes());
    if (bytes.empty()) return bytes;
    gpu_.copyOut(owner_.get(), bytes.size(), bytes.data());
    gpu_.wait();
    return bytes;
  }

 private:
  Gpu& gpu_;
  TensorSpec spec_;
  std::shared_ptr<std::byte> owner_;
};

// The decoded tensor's bytes, or the refusal.
inline std::string decodeOutcome(const Codec& host, const Codec* gpuCodec, Gpu& gpu,
                                 const CodecContext& context, CutContext cut, const Bytes& payload,
                                 const TensorSpec& spec) {
  // A buffer of exactly the payload's size.
  const std::unique_ptr<std::byte[]> bytes(new std::byte[payload.size()]);
  std::copy(payload.begin(), payload.end(), bytes.get());
  const std::span<const std::byte> view(bytes.get(), payload.size());
  Bytes tensor(spec.bytes(), std::byte{0x33});
  try {
    if (gpuCodec == nullptr) {
      host.decode(context, nullptr, cut, view, {tensor.data(), spec});
    } else {
      const DeviceTensor out(gpu, spec, tensor);
      gpuCodec->decode(context, nullptr, cut, view, out.out());
      tensor = out.read();
    }
  } catch (const ProtocolError& error) {
    return std::string("refused: ") + error.what();
  }
  return "decoded: " + std::string(reinterpret_cast<const char*>(tensor.data()), tensor.size());
}

// Damaged payloads, which both codecs must either refuse or decode to the same result.
inline std::vector<Bytes> damaged(const Bytes& payload) {
  std::vector<Bytes> all;
  const auto with = [&](std::size_t at, unsigned value) {
    if (at >= payload.size()) return;
    all.push_back(payload);
    all.back()[at] = static_cast<std::byte>(value);
  };
  for (const std::size_t at : {0, 1, 2, 3, 4, 5, 8, 9, 12, 17}) {
    with(at, 0x7f);
    with(at, 0xff);
  }
  for (const unsigned value : {0u, 1u, 2u, 3u, 9u}) with(0, value);
  for (const std::size_t back : {1, 2, 5, 100}) {
    if (payload.size() <= back) continue;
    with(payload.size() - back, 0xff);
    with(payload.size() - back, 0x00);
    all.emplace_back(payload.begin(), payload.end() - static_cast<std::ptrdiff_t>(back));
  }
  all.push_back(payload);
  all.back().push_back(std::byte{0});
  all.emplace_back();
  all.push_back({std::byte{0}});
  return all;
}

// Passes a tensor and its gradient at the same cut through the CPU codec and the GPU codec.
inline void checkGpuCodec(const std::shared_ptr<const Codec>& codec, const DeviceCodec& gpuCodec,
                          Gpu& gpu, const Tensor& tensor, bool damage) {
  CAPTURE(codec->spec(), toString(tensor.spec));
  REQUIRE(gpuCodec.spec() == codec->spec());
  REQUIRE(gpuCodec.maxEncodedBytes(tensor.spec) == codec->maxEncodedBytes(tensor.spec));
  const DeviceTensor there(gpu, tensor.spec, tensor.bytes);
  for (const Phase phase : {Phase::train, Phase::eval}) {
    const CodecContext activation{7, {phase, 3, 1, activationAt(0)}};
    const CodecContext gradient{7, {phase, 3, 1, gradientAt(0)}};
    const Outcome first = encodeOutcome(*codec, activation, {}, tensor.view());
    const Outcome second = encodeOutcome(gpuCodec, activation, {}, there.view());
    REQUIRE((first.bytes == second.bytes));
    REQUIRE((first.cut.value == nullptr) == (second.cut.value == nullptr));
    if (!first.bytes) continue;
    const auto decoded = [&](const CodecContext& context, const CutContext& cut,
                             const Bytes& payload) {
      const std::string here =
          decodeOutcome(*codec, nullptr, gpu, context, cut, payload, tensor.spec);
      REQUIRE((here == decodeOutcome(*codec, &gpuCodec, gpu, context, cut, payload, tensor.spec)));
      return here;
    };
    CHECK(decoded(activation, {}, *first.bytes).starts_with("decoded"));
    if (damage && phase == Phase::train) {
      for (const Bytes& payload : damaged(*first.bytes)) decoded(activation, {}, payload);
    }
    if (!first.cut.value) continue;
    // The cut context of either codec works with the other codec.
    const Outcome back = encodeOutcome(*codec, gradient, first.cut, tensor.view());
    REQUIRE((back.bytes == encodeOutcome(gpuCodec, gradient, second.cut, there.view()).bytes));
    REQUIRE((back.bytes == encodeOutcome(gpuCodec, gradient, first.cut, there.view()).bytes));
    CHECK(decoded(gradient, first.cut, *back.bytes).starts_with("decoded"));
    CHECK(decoded(gradient, second.cut, *back.bytes).starts_with("decoded"));
    if (!damage || phase != Phase::train) continue;
    for (const Bytes& payload : damaged(*back.bytes)) decoded(gradient, second.cut, payload);
  }
}

// All codecs that have a GPU implementation; also checks that all non-finite values are refused.
inline void checkDeviceCodecs(Gpu& gpu, const std::vector<std::size_t>& sizes) {
  std::size_t gpuCodecs = 0;
  for (const std::string& spec : deviceSpecs()) {
    const std::shared_ptr<const Codec> codec = makeCodec(spec);
    const auto gpuCodec = makeDeviceCodec(codec, gpu);
    if (gpuCodec == nullptr) continue;
    ++gpuCodecs;
    for (const std::size_t elements : sizes) {
      for (int kind = 0; kind < kValueKinds; ++kind) {
        CAPTURE(kind);
        const std::vector<float> values = deviceValues(kind, elements);
        for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
          if (kind > 4 && dtype != DType::f32)
            continue;  // narrowed, these values are infinite or equal those of another kind
          checkGpuCodec(codec, *gpuCodec, gpu, tensorOf(values, dtype),
                        elements < 6000 && kind < 2);
        }
      }
      if (elements == 0) continue;
      for (const float value :
           {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
            std::numeric_limits<float>::quiet_NaN()}) {
        for (const std::size_t at : {std::size_t{0}, elements / 2, elements - 1}) {
          CAPTURE(value, at);
          std::vector<float> values = deviceValues(0, elements);
          values[at] = value;
          for (const DType dtype : {DType::f32, DType::f16})
            checkGpuCodec(codec, *gpuCodec, gpu, tensorOf(values, dtype), false);
        }
      }
    }
  }
  CHECK(gpuCodecs >= 20);
}

}  // namespace cleave::test
