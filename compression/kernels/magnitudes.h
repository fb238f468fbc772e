// Kernels over the magnitudes of fp32 values: their bits without the sign, which order as they do.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cleave {

// Bit j of words tells whether the magnitude of values[j] is at least `least`, which is below 2^31.
// Writes (count + 63) / 64 words; bits from `count` on are 0.
void flagMagnitudes(const float* values, std::size_t count, std::uint32_t least,
                    std::uint64_t* words);

}  // namespace cleave
