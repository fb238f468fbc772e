// Order statistics of a tensor without sorting it.
#pragma once

#include <span>
#include <vector>

#include "compression/parts/strips.h"

namespace cleave {

// Returns the values at `ranks` (ascending, below values.size()) of the sorted tensor. The result
// is exact; -0 counts as +0. Requires finite values.
//
// Each value has an integer key that sorts like the value. A histogram over the top 11 bits of the
// keys finds the bin of each rank. Only the values of those bins are collected; nth_element then
// selects among them. Values that repeat many times in a bin, such as the zeros of ReLU, are
// counted instead of collected.
std::vector<float> valuesAtRanks(const CodecContext& context, const FloatReader& values,
                                 std::span<const std::size_t> ranks);

}  // namespace cleave
