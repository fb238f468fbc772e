// The codecs' arithmetic on one value, one grid or one block, bit-identical to the CPU code in
// compression/ (kernels/plain.h, uniform.cpp, sort.cpp): IEEE 754, each operation rounded
// separately, true divisions, subnormals preserved. nvcc requires -fmad=false for this.
#pragma once

#include "compression/device/host_device.h"

namespace cleave::device {

inline constexpr std::uint32_t kSign = 0x80000000;
inline constexpr std::uint32_t kInfinityBits = 0x7f800000;
inline constexpr float kLargestFloat = 0x1.fffffep127f;
inline constexpr float kLargestBf16 = 0x1.fep127f;
inline constexpr float kLargestHalf = 65504;
inline constexpr float kMinNormal = 0x1p-126f;
// Floats of this magnitude have no fraction bits, so adding this number rounds to an integer, ties
// to even.
inline constexpr float kNoFraction = 0x1.8p23f;
inline constexpr double kNoFractionDouble = 0x1p52;

// ---- Conversions: see kernels/plain.cpp for explanations ----

CLEAVE_DEVICE inline std::uint16_t toHalf(float value) {
  const std::uint32_t bits = bitsOf(value);
  const std::uint32_t magnitude = bits & ~kSign;
  constexpr std::uint32_t kTwoTo16 = (127 + 16) << 23;
  constexpr std::uint32_t kMinNormalHalf = (127 - 14) << 23;
  std::uint32_t half = 0;
  if (magnitude > kInfinityBits) {
    half = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  } else if (magnitude >= kTwoTo16) {
    half = 0x7c00;
  } else if (magnitude >= kMinNormalHalf) {
    half = (magnitude - ((127 - 15) << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  } else {
    half = bitsOf(floatOf(magnitude) + 0.5f) - bitsOf(0.5f);
  }
  return static_cast<std::uint16_t>(half | (bits & kSign) >> 16);
}

CLEAVE_DEVICE inline float fromHalf(std::uint16_t half) {
  const std::uint32_t magnitude = static_cast<std::uint32_t>(half & 0x7fff) << 13;
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16;
  constexpr std::uint32_t kExponent = 0x7c00 << 13;
  constexpr std::uint32_t kHidden = (127 - 14) << 23;
  std::uint32_t bits = magnitude + ((127 - 15) << 23);
  if ((magnitude & kExponent) == kExponent) bits = magnitude | kInfinityBits;
  if ((magnitude & kExponent) == 0) bits = bitsOf(floatOf(magnitude + kHidden) - floatOf(kHidden));
  return floatOf(bits | sign);
}

CLEAVE_DEVICE inline std::uint16_t toBf16(float value) {
  const std::uint32_t bits = bitsOf(value);
  if ((bits & ~kSign) > kInfinityBits) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

CLEAVE_DEVICE inline float fromBf16(std::uint16_t value) {
  return floatOf(static_cast<std::uint32_t>(value) << 16);
}

CLEAVE_DEVICE inline std::uint16_t narrow(float value, DType dtype) {
  return dtype == DType::f16 ? toHalf(value) : toBf16(value);
}
CLEAVE_DEVICE inline float widen(std::uint16_t value, DType dtype) {
  return dtype == DType::f16 ? fromHalf(value) : fromBf16(value);
}

// Returns a key that sorts like the values; -0 counts as +0.
CLEAVE_DEVICE inline std::uint32_t keyOf(float value) {
  const std::uint32_t bits = bitsOf(value + 0.0f);
  return bits & kSign ? ~bits : bits | kSign;
}
CLEAVE_DEVICE inline float valueOfKey(std::uint32_t key) {
  return floatOf(key & kSign ? key ^ kSign : ~key);
}

// The next value towards +0. Requires a positive value.
CLEAVE_DEVICE inline float nextBelow(float value) { return floatOf(bitsOf(value) - 1); }

// ---- One grid for a tensor, or for a piece of its values ----

struct QuantGrid {
  float min = 0;
  float step = 0;
};

CLEAVE_DEVICE inline float valueAt(QuantGrid grid, int code) {
  return static_cast<float>(static_cast<double>(grid.min) + static_cast<double>(grid.step) * code);
}

// gridOf() of uniform.cpp, for values whose range is finite.
CLEAVE_DEVICE inline QuantGrid uniformGrid(float min, float max, int top) {
  const auto maxCode = static_cast<float>(top);
  QuantGrid grid{min, (max - min) / maxCode};
  for (;;) {
    const float span = grid.step * maxCode;
    if (isFinite(isFinite(span) ? grid.min + span : valueAt(grid, top))) return grid;
    grid.step = nextBelow(grid.step);
  }
}

// stepOf() of sort.cpp, for pieces whose range is finite.
CLEAVE_DEVICE inline float pieceStep(float min, float max, int top) {
  float step = (max - min) / static_cast<float>(top);
  while (!isFinite(valueAt({min, step}, top))) step = nextBelow(step);
  return step;
}

// Requires value >= min; divisor > 0.
CLEAVE_DEVICE inline std::uint32_t codeOf(float value, float min, float divisor, float maxCode) {
  const float exact = (value - min) / divisor;
  return static_cast<std::uint32_t>(((exact < maxCode ? exact : maxCode) + kNoFraction) -
                                    kNoFraction);
}

// ---- A block's grid: see kernels/plain.cpp ----

struct Range {
  float min = 0, max = 0;
};

CLEAVE_DEVICE inline float bf16Down(float value) {
  const std::uint32_t bits = bitsOf(value);
  const std::uint32_t away = bits & kSign ? 0xffff : 0;
  return greater(floatOf((bits + away) & 0xffff0000), -kLargestBf16);
}

CLEAVE_DEVICE inline float bf16Up(float value) {  // requires value >= +0
  return lesser(floatOf((bitsOf(value) + 0xffff) & 0xffff0000), kLargestBf16);
}

CLEAVE_DEVICE inline float halfDown(float value) {
  value = bounded(value, -kLargestHalf, kLargestHalf);
  const std::uint16_t half = toHalf(value);
  if (fromHalf(half) <= value) return fromHalf(half);
  if (half == 0) return fromHalf(0x8001);
  return fromHalf(static_cast<std::uint16_t>(half & 0x8000 ? half + 1 : half - 1));
}

CLEAVE_DEVICE inline float halfUp(float value) {  // requires value >= +0
  value = lesser(value, kLargestHalf);
  const std::uint16_t half = toHalf(value);
  return fromHalf(fromHalf(half) < value ? static_cast<std::uint16_t>(half + 1) : half);
}

CLEAVE_DEVICE inline QuantGrid blockGrid(Range range, int top, bool halfHeader) {
  QuantGrid grid;
  grid.min = (halfHeader ? halfDown(range.min) : bf16Down(range.min)) + 0.0f;
  const auto maxCode = static_cast<float>(top);
  float step = (range.max - grid.min) / maxCode;
  if (!isFinite(step)) step = range.max / maxCode - grid.min / maxCode;
  step = greater(step, 0.0f);
  if (step > 0) step = greater(step, kMinNormal);
  grid.step = halfHeader ? halfUp(step) : bf16Up(step);
  return grid;
}

CLEAVE_DEVICE inline std::uint32_t blockHeader(QuantGrid grid, bool halfHeader) {
  const DType dtype = halfHeader ? DType::f16 : DType::bf16;
  const std::uint32_t step = narrow(grid.step, dtype);
  return narrow(grid.min, dtype) | step << 16;
}

// Returns false if min is not finite, or step is negative or not finite.
CLEAVE_DEVICE inline bool blockGridOf(std::uint32_t header, bool halfHeader, QuantGrid& grid) {
  const DType dtype = halfHeader ? DType::f16 : DType::bf16;
  const auto min = static_cast<std::uint16_t>(header);
  const auto step = static_cast<std::uint16_t>(header >> 16);
  grid = {widen(min, dtype), widen(step, dtype)};
  const std::uint16_t infinity = halfHeader ? 0x7c00 : 0x7f80;
  return (min & 0x7fff) < infinity && step < infinity;
}

CLEAVE_DEVICE inline bool isWide(Range range, QuantGrid grid, int top) {
  const float span = range.max - grid.min;
  return !(isFinite(span) && grid.min <= range.min && grid.step >= span / static_cast<float>(top));
}

CLEAVE_DEVICE inline std::uint32_t wideBlockCode(float value, QuantGrid grid, int top) {
  // With step 0, min is the lowest value that the header can represent, and no value is larger.
  const double step = grid.step > 0 ? static_cast<double>(grid.step) : 1.0;
  const double exact = (static_cast<double>(value) - static_cast<double>(grid.min)) / step;
  const double inRange = bounded(exact, 0.0, static_cast<double>(top));
  return static_cast<std::uint32_t>((inRange + kNoFractionDouble) - kNoFractionDouble);
}

// Requires a grid that spans its block. `draw` is 0 unless rounding is stochastic.
CLEAVE_DEVICE inline std::uint32_t blockCode(float value, float min, float inverse, float draw,
                                             float maxCode) {
  const float exact = bounded((value - min) * inverse + draw, -0.5f, maxCode);
  return static_cast<std::uint32_t>((exact + kNoFraction) - kNoFraction);
}

// The draw for element j, in [-1/2, 1/2).
CLEAVE_DEVICE inline float drawFor(std::uint32_t j, std::uint32_t keyLow, std::uint32_t keyHigh) {
  std::uint32_t x = j + keyLow;
  x ^= x >> 16;
  x *= 0x7feb352d;
  x ^= keyHigh;
  x ^= x >> 15;
  x *= 0x846ca68b;
  return floatOf((x >> 9) | 0x3f800000) - 1.5f;
}

CLEAVE_DEVICE inline float blockValue(std::uint32_t code, QuantGrid grid, bool wide, float limit) {
  if (wide) {
    const double value = static_cast<double>(grid.min) + static_cast<double>(grid.step) * code;
    return static_cast<float>(
        bounded(value, -static_cast<double>(limit), static_cast<double>(limit)));
  }
  return bounded(grid.min + grid.step * static_cast<float>(code), -limit, limit);
}

}  // namespace cleave::device
