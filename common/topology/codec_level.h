// The level of a batch: how the tensors of the batch are encoded, if the run spec has
// `codec_levels`.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cleave {

// From the most to the least lossy. Flows with the codec `none`, `fp16` or `bf16` ignore levels.
enum class CodecLevel : std::uint8_t {
  own,    // the flow's codec
  eight,  // block:bits=8, unless the flow's codec has at least as many bits
  raw,    // no codec: the payload has the raw format (raw.h)
};
inline constexpr std::size_t kCodecLevels = 3;

}  // namespace cleave
