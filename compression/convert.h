// Tensors of any dtype as fp32: round to nearest, ties to even, the same bits on every instruction
// set. NaN stays NaN (narrowing makes it quiet and keeps its payload's top bits), infinities stay,
// what is too large becomes infinity, subnormals are exact. Pointers need no alignment.
#pragma once

#include <cstddef>

#include "common/codec/tensor.h"

namespace cleave {

// Reads `elements` values of `dtype` at `in`. The ranges must not overlap.
void toFloat(const std::byte* in, DType dtype, std::size_t elements, float* out);
// Writes `elements` values of `dtype` to `out`. The ranges must not overlap.
void fromFloat(const float* in, std::size_t elements, DType dtype, std::byte* out);
// The greatest finite value.
float largestOf(DType dtype);

}  // namespace cleave
