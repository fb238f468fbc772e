// Order statistics of a tensor without sorting it.
#pragma once

#include <span>
#include <vector>

#include "compression/strips.h"

namespace cleave {

// The values that stand at `ranks` (ascending, below values.size()) in the sorted order. Exact; -0
// counts as +0. Requires finite values.
//
// A histogram over the top 11 bits of a key that orders as the value does says in which bin each
// rank lies; only those bins' values are collected, and selected among by nth_element. Values that
// fill a bin again and again, such as ReLU's zeros, are counted instead of collected.
std::vector<float> valuesAtRanks(const CodecContext& context, const FloatReader& values,
                                 std::span<const std::size_t> ranks);

}  // namespace cleave
