// Decoding by a table of every code's value.
#pragma once

#include <span>

#include "common/codec/tensor.h"

namespace cleave {

// Writes all of `out`: element j is table[code j], the codes packed at `in` with `bits` each, 1…16.
// The table has 2^bits values.
void lookUp(const std::byte* in, int bits, std::span<const float> table, MutableTensorView out);

}  // namespace cleave
