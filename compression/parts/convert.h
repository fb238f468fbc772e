// Conversions between tensors of any dtype and fp32: round to nearest, ties to even, bit-identical
// on every instruction set. NaN stays NaN (narrowing makes it quiet and keeps the top bits of its
// payload), infinities are preserved, values that are too large become infinity, subnormals are
// exact. Pointers need no alignment.
#pragma once

#include <cstddef>
#include <span>

#include "common/codec/tensor.h"

namespace cleave {

// Reads `elements` values of `dtype` from `in`. The ranges must not overlap.
void toFloat(const std::byte* in, DType dtype, std::size_t elements, float* out);
// Writes `elements` values of `dtype` to `out`. The ranges must not overlap.
void fromFloat(const float* in, std::size_t elements, DType dtype, std::byte* out);
// Rounds each value to the dtype, as fromFloat does.
void roundTo(DType dtype, std::span<float> values);
// The largest finite value of the dtype.
float largestOf(DType dtype);
bool allFinite(std::span<const float> values);

}  // namespace cleave
