// Tensors of any dtype, piece by piece as fp32: what lies in memory as fp32 already is used in
// place, the rest passes through a buffer that stays in the first-level cache.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "compression/convert.h"

namespace cleave {

inline constexpr std::size_t kPieceElements = 4096;

inline bool isAlignedFloat(const std::byte* data, DType dtype) {
  return dtype == DType::f32 && reinterpret_cast<std::uintptr_t>(data) % alignof(float) == 0;
}

// Calls take(first element, count > 0, values): once, or for each piece of at most kPieceElements;
// not at all for no elements.
template <typename Take>
void forEachPiece(const std::byte* data, DType dtype, std::size_t elements, Take take) {
  if (elements == 0) return;
  if (isAlignedFloat(data, dtype)) return take(0, elements, reinterpret_cast<const float*>(data));
  alignas(64) std::array<float, kPieceElements> values;
  for (std::size_t start = 0; start < elements; start += kPieceElements) {
    const std::size_t count = std::min(kPieceElements, elements - start);
    toFloat(data + start * dtypeBytes(dtype), dtype, count, values.data());
    take(start, count, values.data());
  }
}

// Calls make(first element, count, values), which writes `count` values, likewise.
template <typename Make>
void makeEachPiece(std::byte* data, DType dtype, std::size_t elements, Make make) {
  if (elements == 0) return;
  if (isAlignedFloat(data, dtype)) return make(0, elements, reinterpret_cast<float*>(data));
  alignas(64) std::array<float, kPieceElements> values;
  for (std::size_t start = 0; start < elements; start += kPieceElements) {
    const std::size_t count = std::min(kPieceElements, elements - start);
    make(start, count, values.data());
    fromFloat(values.data(), count, dtype, data + start * dtypeBytes(dtype));
  }
}

}  // namespace cleave
