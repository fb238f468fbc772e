// Shared by codecs whose payloads begin with a format byte.
#pragma once

#include <cstring>
#include <span>

#include "common/codec/codec.h"
#include "common/codec/raw.h"
#include "compression/kernels/kernels.h"

namespace cleave {

inline constexpr std::size_t kFormatBytes = 1;

// The range of all elements; without elements, min is infinity and max its negative.
kernels::Range rangeOf(const CodecContext& context, const TensorView& view);

// The raw payload, for a tensor that packing would not make shorter. Throws NonFiniteError.
Encoded encodeFiniteRaw(const CodecContext& context, const TensorView& view,
                        std::span<std::byte> out);

using kernels::packedBytes;

inline void putFloat(std::byte* out, float value) { std::memcpy(out, &value, sizeof value); }
inline float getFloat(const std::byte* in) {
  float value = 0;
  std::memcpy(&value, in, sizeof value);
  return value;
}

}  // namespace cleave
