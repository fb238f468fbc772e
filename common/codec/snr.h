// The error that a codec makes.
#pragma once

#include <cstddef>
#include <optional>

#include "common/codec/tensor.h"

namespace cleave {

// The signal-to-noise ratio of a tensor that was encoded and decoded, in dB, and at least -1000:
//
//   10 log10(sum of x^2 / sum of (x - x')^2)
//
// `decoded` has the same spec as `original`, and both are in host memory. Nullopt if all values are
// equal, if all original ones are zero, if one is NaN, or if the tensor is not fp32.
std::optional<double> snrDb(const TensorView& original, const std::byte* decoded);

}  // namespace cleave
