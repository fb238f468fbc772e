// Kernels over the magnitudes of fp32 values: their bits without the sign, which have the same
// order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cleave {

// Bit j of `words` says whether the magnitude of values[j] is at least `threshold`, which must be
// below 2^31. Writes (count + 63) / 64 words; bits from `count` on are 0.
void flagMagnitudes(const float* values, std::size_t count, std::uint32_t threshold,
                    std::uint64_t* words);

}  // namespace cleave
