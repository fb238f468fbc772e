// Compares codecs that send as many bytes by their errors on a run's own tensors: how large they
// are depends on the tensors. No Torch, no sockets.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/codec/codec_plan.h"
#include "common/topology/flow.h"

namespace cleave {

// A copy of a tensor of a run, in fp32. `values` has spec.elements() values, in the memory order of
// `spec`.
struct SampleTensor {
  TensorSpec spec;
  std::vector<float> values;
};
using SampleTensors = std::map<Flow, SampleTensor>;

// The codecs that `auto` compares with the one of `spec`: they send at most 2 bytes more per
// tensor. The first one is `spec`. It is the only one unless `spec` is block:bits=4 or
// block:bits=2: with more bits, errors are so small that the fastest codec is best.
std::vector<std::string> codecsLike(std::string_view spec);

struct CodecSnr {
  ParsedCodec codec;
  double snrDb = 0;  // the lowest of the tensors; infinite if all are exact
};

// Encodes and decodes the tensors with each codec of codecsLike(spec), as in a run's first step.
// Empty if there are no tensors, or if one has a value that is not finite.
std::vector<CodecSnr> compareCodecs(std::string_view spec,
                                    const std::vector<const SampleTensor*>& tensors);

// The bytes of the encoded tensors; nullopt if one has a value that is not finite.
std::optional<std::size_t> encodedBytes(const Codec& codec,
                                        const std::vector<const SampleTensor*>& tensors);

// The codec with the highest SNR; the first one if no other is at least 1 dB better. Requires an
// element.
const CodecSnr& leastNoisy(const std::vector<CodecSnr>& compared);

}  // namespace cleave
