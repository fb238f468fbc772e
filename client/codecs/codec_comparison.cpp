#include "client/codecs/codec_comparison.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "common/codec/snr.h"
#include "compression/registry.h"

namespace cleave {
namespace {

// The bits of `block` with which other codecs are compared.
constexpr int kComparedBits[] = {2, 4};
// A smaller advantage, in dB, is not worth a codec that takes longer than `block`.
constexpr double kMinGain = 1;

const CodecContext kContext{1, {Phase::train, 1, 0, activationAt(0)}};

TensorView viewOf(const SampleTensor& tensor) {
  return {reinterpret_cast<const std::byte*>(tensor.values.data()), tensor.spec};
}

std::vector<std::byte> encode(const Codec& codec, const SampleTensor& tensor) {
  std::vector<std::byte> payload(codec.maxEncodedBytes(tensor.spec));
  CutContext cut;
  payload.resize(codec.encode(kContext, nullptr, cut, viewOf(tensor), payload).bytes);
  return payload;
}

// Nullopt if the tensor is exact, or if it has no finite SNR for another reason.
std::optional<double> snrOf(const Codec& codec, const SampleTensor& tensor) {
  std::vector<float> decoded(tensor.values.size());
  auto* const out = reinterpret_cast<std::byte*>(decoded.data());
  CutContext cut;
  codec.decode(kContext, nullptr, cut, encode(codec, tensor), {out, tensor.spec});
  return snrDb(viewOf(tensor), out);
}

}  // namespace

std::vector<std::string> codecsLike(std::string_view spec) {
  std::vector<std::string> all{std::string(spec)};
  for (const int bits : kComparedBits) {
    const std::string block = "block:bits=" + std::to_string(bits);
    if (spec != block) continue;
    // `adaptive` has 1/16 bit per value more in its headers than `block`.
    const std::string adaptive = "adaptive:bits=" + std::to_string(bits - 1) + ".9375";
    all.insert(all.end(), {block + ",rotation=hadamard", "channels(" + block + ")", adaptive,
                           "channels(" + adaptive + ")"});
  }
  return all;
}

std::vector<CodecSnr> compareCodecs(std::string_view spec,
                                    const std::vector<const SampleTensor*>& tensors) {
  if (tensors.empty()) return {};
  constexpr double kExact = std::numeric_limits<double>::infinity();
  std::vector<CodecSnr> compared;
  for (const std::string& each : codecsLike(spec)) {
    ParsedCodec codec = parseCodec(each);
    double lowest = kExact;
    try {
      for (const SampleTensor* tensor : tensors) {
        lowest = std::min(lowest, snrOf(*codec, *tensor).value_or(kExact));
      }
    } catch (const NonFiniteError&) {
      return {};
    }
    compared.push_back({std::move(codec), lowest});
  }
  return compared;
}

std::optional<std::size_t> encodedBytes(const Codec& codec,
                                        const std::vector<const SampleTensor*>& tensors) {
  std::size_t bytes = 0;
  try {
    for (const SampleTensor* tensor : tensors) bytes += encode(codec, *tensor).size();
  } catch (const NonFiniteError&) {
    return std::nullopt;
  }
  return bytes;
}

const CodecSnr& leastNoisy(const std::vector<CodecSnr>& compared) {
  const auto best =
      std::max_element(compared.begin(), compared.end(),
                       [](const CodecSnr& a, const CodecSnr& b) { return a.snrDb < b.snrDb; });
  return best->snrDb >= compared.front().snrDb + kMinGain ? *best : compared.front();
}

}  // namespace cleave
