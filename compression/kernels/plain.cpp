#include "compression/kernels/plain.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

namespace cleave::kernels::plain {
namespace {

constexpr std::uint32_t kSign = 0x80000000;
constexpr std::uint32_t kInfinity = 0x7f800000;
constexpr float kLargestBf16 = 0x1.fep127f;
constexpr float kLargestHalf = 65504;
constexpr float kMinNormal = 0x1p-126f;
constexpr std::size_t kMaxSize = 1024;

// Floats of this magnitude have no fraction bits, so adding this number rounds to an integer, ties
// to even.
constexpr float kNoFraction = 0x1.8p23f;

std::uint16_t load16(const std::byte* in) {
  std::uint16_t value;
  std::memcpy(&value, in, sizeof value);
  return value;
}

void store16(std::uint16_t value, std::byte* out) { std::memcpy(out, &value, sizeof value); }

// ---- A block's header: min is rounded towards minus infinity, step away from zero ----

float bf16Down(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t away = bits & kSign ? 0xffff : 0;
  const float down = std::bit_cast<float>((bits + away) & 0xffff0000);
  return std::max(down, -kLargestBf16);
}

float bf16Up(float value) {  // requires value >= +0
  const std::uint32_t bits = (std::bit_cast<std::uint32_t>(value) + 0xffff) & 0xffff0000;
  return std::min(std::bit_cast<float>(bits), kLargestBf16);
}

float halfDown(float value) {
  value = std::clamp(value, -kLargestHalf, kLargestHalf);
  const std::uint16_t half = toHalf(value);
  if (fromHalf(half) <= value) return fromHalf(half);
  if (half == 0) return fromHalf(0x8001);
  return fromHalf(static_cast<std::uint16_t>(half & 0x8000 ? half + 1 : half - 1));
}

float halfUp(float value) {  // requires value >= +0
  value = std::min(value, kLargestHalf);
  const std::uint16_t half = toHalf(value);
  return fromHalf(fromHalf(half) < value ? static_cast<std::uint16_t>(half + 1) : half);
}

float withSign(float value, std::size_t j) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ kRotationSigns[j]);
}

void multiplyByHadamard(float* tile, std::size_t size) {
  for (std::size_t stride = 1; stride < size; stride *= 2) {
    for (std::size_t j = 0; j < size; ++j) {
      if ((j & stride) != 0) continue;
      const float a = tile[j];
      const float b = tile[j + stride];
      tile[j] = a + b;
      tile[j + stride] = a - b;
    }
  }
}

// The draw for element j, in [-1/2, 1/2). It is the integer hash lowbias32
// (https://nullprogram.com/blog/2018/07/31/) without its last shift. One half of the key is added
// first; the other half is XORed in the middle.
float drawFor(std::uint32_t j, const BlockFormat& format) {
  std::uint32_t x = j + format.keyLow;
  x ^= x >> 16;
  x *= 0x7feb352d;
  x ^= format.keyHigh;
  x ^= x >> 15;
  x *= 0x846ca68b;
  return std::bit_cast<float>((x >> 9) | 0x3f800000) - 1.5f;
}

}  // namespace

Range rangeOf(const float* values, std::size_t count) {
  Range range{values[0], values[0], true};
  for (std::size_t j = 0; j < count; ++j) {
    const float x = values[j];
    range.finite = range.finite && std::isfinite(x);
    range.min = x < range.min ? x : range.min;
    range.max = x > range.max ? x : range.max;
  }
  range.min += 0.0f;
  range.max += 0.0f;
  return range;
}

// ---- Conversions ----
// Float additions are exact or round once (IEEE 754), and their results are normal or zero: modes
// that flush subnormals do not change them.

std::uint16_t toHalf(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & ~kSign;
  const auto sign = static_cast<std::uint16_t>((bits & kSign) >> 16);
  constexpr std::uint32_t kTwoTo16 = (127 + 16) << 23;
  constexpr std::uint32_t kMinNormalHalf = (127 - 14) << 23;
  std::uint32_t half = 0;
  if (magnitude > kInfinity) {
    half = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  } else if (magnitude >= kTwoTo16) {
    half = 0x7c00;
  } else if (magnitude >= kMinNormalHalf) {
    // Changes the exponent's bias from 127 to 15 and rounds off 13 bits. A carry out of the
    // mantissa is correct: it increments the exponent, up to infinity.
    half = (magnitude - ((127 - 15) << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  } else {
    // Near 0.5, the last bit of an fp32 is worth 2^-24, the same as that of a half subnormal; so
    // adding 0.5 rounds.
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) -
           std::bit_cast<std::uint32_t>(0.5f);
  }
  return static_cast<std::uint16_t>(half | sign);
}

float fromHalf(std::uint16_t half) {
  const std::uint32_t magnitude = static_cast<std::uint32_t>(half & 0x7fff) << 13;
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16;
  constexpr std::uint32_t kExponent = 0x7c00 << 13;
  constexpr std::uint32_t kHidden = (127 - 14) << 23;
  std::uint32_t bits = magnitude + ((127 - 15) << 23);
  if ((magnitude & kExponent) == kExponent) bits = magnitude | kInfinity;
  if ((magnitude & kExponent) == 0) {
    // Zero and subnormals: adds the hidden bit that they lack, 2^-14, and subtracts it again.
    bits = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude + kHidden) -
                                        std::bit_cast<float>(kHidden));
  }
  return std::bit_cast<float>(bits | sign);
}

std::uint16_t toBf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & ~kSign) > kInfinity) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float fromBf16(std::uint16_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

void floatFromHalf(const std::byte* in, std::size_t count, float* out) {
  for (std::size_t j = 0; j < count; ++j) out[j] = fromHalf(load16(in + 2 * j));
}

void halfFromFloat(const float* in, std::size_t count, std::byte* out) {
  for (std::size_t j = 0; j < count; ++j) store16(toHalf(in[j]), out + 2 * j);
}

void floatFromBf16(const std::byte* in, std::size_t count, float* out) {
  for (std::size_t j = 0; j < count; ++j) out[j] = fromBf16(load16(in + 2 * j));
}

void bf16FromFloat(const float* in, std::size_t count, std::byte* out) {
  for (std::size_t j = 0; j < count; ++j) store16(toBf16(in[j]), out + 2 * j);
}

float powerOfTwo(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

void fp8FromFloat(const float* in, std::size_t count, Fp8 format, int exponent, std::byte* out) {
  const int mantissa = format == Fp8::e4m3 ? 3 : 2;
  const int bias = format == Fp8::e4m3 ? 7 : 15;
  const int shift = 23 - mantissa;
  // As in toHalf(): near `hidden`, the last bit of an fp32 is worth the same as that of a
  // subnormal.
  const float hidden = powerOfTwo(1 - bias - mantissa + 23);
  for (std::size_t j = 0; j < count; ++j) {
    const auto bits = std::bit_cast<std::uint32_t>(in[j] * powerOfTwo(-exponent));
    const std::uint32_t magnitude = bits & ~kSign;
    std::uint32_t code = 0;
    if (magnitude < static_cast<std::uint32_t>(128 - bias) << 23) {
      code = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + hidden) -
             std::bit_cast<std::uint32_t>(hidden);
    } else {
      const std::uint32_t odd = (magnitude >> shift) & 1;
      const std::uint32_t rebiased = magnitude - (static_cast<std::uint32_t>(127 - bias) << 23);
      code = (rebiased + (1u << (shift - 1)) - 1 + odd) >> shift;
    }
    out[j] = static_cast<std::byte>(code | (bits & kSign) >> 24);
  }
}

bool floatFromFp8(const std::byte* in, std::size_t count, Fp8 format, int exponent, float limit,
                  float* out) {
  const int mantissa = format == Fp8::e4m3 ? 3 : 2;
  const int bias = format == Fp8::e4m3 ? 7 : 15;
  bool finite = true;
  for (std::size_t j = 0; j < count; ++j) {
    const auto code = std::to_integer<std::uint32_t>(in[j]);
    const std::uint32_t magnitude = code & 0x7f;
    finite = finite && magnitude <= fp8MaxCode(format);
    const auto fraction = static_cast<float>(magnitude & ((1u << mantissa) - 1));
    const auto power = static_cast<int>(magnitude >> mantissa);
    float value = power == 0 ? fraction * powerOfTwo(1 - bias - mantissa)
                             : (fraction + static_cast<float>(1 << mantissa)) *
                                   powerOfTwo(power - bias - mantissa);
    value *= powerOfTwo(exponent);
    out[j] = std::clamp(code & 0x80 ? -value : value, -limit, limit);
  }
  return finite;
}

// ---- Codes ----

void lookUp(const std::uint8_t* codes, std::size_t count, const float* table, float* values) {
  constexpr std::size_t kGroup = 8;
  std::size_t j = 0;
  for (; j + kGroup <= count; j += kGroup) {
    std::uint64_t group = 0;
    std::memcpy(&group, codes + j, kGroup);
    // Combines two values into one store.
    for (std::size_t pair = 0; pair < kGroup / 2; ++pair) {
      const auto two = static_cast<std::uint32_t>(group >> 16 * pair);
      const std::uint64_t both = std::bit_cast<std::uint32_t>(table[two & 0xff]) |
                                 std::uint64_t{std::bit_cast<std::uint32_t>(table[two >> 8 & 0xff])}
                                     << 32;
      std::memcpy(values + j + 2 * pair, &both, sizeof both);
    }
  }
  for (; j < count; ++j) values[j] = table[codes[j]];
}

void pack(const std::uint16_t* codes, std::size_t count, int bits, std::byte* out) {
  std::uint64_t pending = 0;
  int held = 0;
  for (std::size_t j = 0; j < count; ++j) {
    pending |= static_cast<std::uint64_t>(codes[j]) << held;
    for (held += bits; held >= 8; held -= 8, pending >>= 8)
      *out++ = static_cast<std::byte>(pending);
  }
  if (held > 0) *out = static_cast<std::byte>(pending);
}

void unpack(const std::byte* in, std::size_t count, int bits, std::uint16_t* codes) {
  std::uint64_t pending = 0;
  int held = 0;
  for (std::size_t j = 0; j < count; ++j) {
    for (; held < bits; held += 8) pending |= std::to_integer<std::uint64_t>(*in++) << held;
    codes[j] = static_cast<std::uint16_t>(pending & ((1u << bits) - 1));
    pending >>= bits;
    held -= bits;
  }
}

void quantize(const float* values, std::size_t count, QuantGrid grid, int bits, std::byte* codes) {
  const auto maxCode = static_cast<float>((1 << bits) - 1);
  std::array<std::uint16_t, kMaxSize> block;
  for (std::size_t start = 0; start < count; start += block.size()) {
    const std::size_t here = std::min(block.size(), count - start);
    for (std::size_t j = 0; j < here; ++j) {
      const float exact = (values[start + j] - grid.min) / grid.step;
      const float bounded = exact < maxCode ? exact : maxCode;
      block[j] = static_cast<std::uint16_t>((bounded + kNoFraction) - kNoFraction);
    }
    pack(block.data(), here, bits, codes + packedBytes(start, bits));
  }
}

void dequantize(const std::byte* codes, std::size_t count, QuantGrid grid, int bits,
                float* values) {
  std::array<std::uint16_t, kMaxSize> block;
  for (std::size_t start = 0; start < count; start += block.size()) {
    const std::size_t here = std::min(block.size(), count - start);
    unpack(codes + packedBytes(start, bits), here, bits, block.data());
    for (std::size_t j = 0; j < here; ++j)
      values[start + j] = grid.min + grid.step * static_cast<float>(block[j]);
  }
}

// ---- Blocks ----

QuantGrid blockGrid(Range range, int top, bool halfHeader) {
  QuantGrid grid;
  grid.min = (halfHeader ? halfDown(range.min) : bf16Down(range.min)) + 0.0f;
  const float maxCode = static_cast<float>(top);
  float step = (range.max - grid.min) / maxCode;
  if (!std::isfinite(step)) step = range.max / maxCode - grid.min / maxCode;
  step = std::max(step, 0.0f);
  if (step > 0) step = std::max(step, kMinNormal);
  grid.step = halfHeader ? halfUp(step) : bf16Up(step);
  return grid;
}

std::uint32_t blockHeader(QuantGrid grid, bool halfHeader) {
  const std::uint32_t min = halfHeader ? toHalf(grid.min) : toBf16(grid.min);
  const std::uint32_t step = halfHeader ? toHalf(grid.step) : toBf16(grid.step);
  return min | step << 16;
}

bool blockGridOf(const std::byte* header, bool halfHeader, QuantGrid& grid) {
  const std::uint16_t min = load16(header);
  const std::uint16_t step = load16(header + 2);
  grid = halfHeader ? QuantGrid{fromHalf(min), fromHalf(step)}
                    : QuantGrid{fromBf16(min), fromBf16(step)};
  const std::uint16_t infinity = halfHeader ? 0x7c00 : 0x7f80;
  return (min & 0x7fff) < infinity && step < infinity;
}

bool isWide(Range range, QuantGrid grid, int top) {
  const float span = range.max - grid.min;
  return !(std::isfinite(span) && grid.min <= range.min &&
           grid.step >= span / static_cast<float>(top));
}

void quantizeIfWide(const float* values, const BlockFormat& format, Range range, QuantGrid grid,
                    std::byte* codes) {
  const int top = (1 << format.bits) - 1;
  if (!isWide(range, grid, top)) return;
  constexpr double kNoFractionDouble = 0x1p52;
  // With step 0, min is the lowest value that the header can represent, and no value is larger.
  const double step = grid.step > 0 ? grid.step : 1;
  std::array<std::uint16_t, kMaxSize> block;
  for (std::size_t j = 0; j < format.size; ++j) {
    const double exact = (double{values[j]} - double{grid.min}) / step;
    const double bounded = std::clamp(exact, 0.0, static_cast<double>(top));
    block[j] = static_cast<std::uint16_t>((bounded + kNoFractionDouble) - kNoFractionDouble);
  }
  pack(block.data(), format.size, format.bits, codes);
}

void dequantizeWide(const std::byte* codes, std::size_t count, QuantGrid grid, int bits,
                    float limit, float* values) {
  std::array<std::uint16_t, kMaxSize> block;
  unpack(codes, count, bits, block.data());
  for (std::size_t j = 0; j < count; ++j) {
    const double value = double{grid.min} + double{grid.step} * block[j];
    values[j] = static_cast<float>(std::clamp(value, -double{limit}, double{limit}));
  }
}

bool encodeBlocks(const float* values, std::size_t blocks, const BlockFormat& format,
                  std::uint64_t first, std::byte* headers, std::byte* codes) {
  const int top = (1 << format.bits) - 1;
  const auto maxCode = static_cast<float>(top);
  std::array<std::uint16_t, kMaxSize> block;
  for (std::size_t b = 0; b < blocks; ++b) {
    const float* const in = values + b * format.size;
    const Range range = rangeOf(in, format.size);
    if (!range.finite) return false;
    const QuantGrid grid = blockGrid(range, top, format.halfHeader);
    const std::uint32_t header = blockHeader(grid, format.halfHeader);
    std::memcpy(headers + b * kBlockHeaderBytes, &header, kBlockHeaderBytes);
    const float inverse = grid.step > 0 ? 1.0f / grid.step : 0.0f;
    for (std::size_t j = 0; j < format.size; ++j) {
      float exact = (in[j] - grid.min) * inverse;
      if (format.stochastic)
        exact += drawFor(static_cast<std::uint32_t>(first + b * format.size + j), format);
      // The value exceeds the last code only by rounding, or in a wide block. quantizeIfWide()
      // computes the codes of wide blocks.
      exact = std::clamp(exact, -0.5f, maxCode);
      block[j] = static_cast<std::uint16_t>((exact + kNoFraction) - kNoFraction);
    }
    std::byte* const out = codes + packedBytes(b * format.size, format.bits);
    pack(block.data(), format.size, format.bits, out);
    quantizeIfWide(in, format, range, grid, out);
  }
  return true;
}

bool decodeBlocks(const std::byte* headers, const std::byte* codes, std::size_t blocks,
                  const BlockFormat& format, float limit, float* values) {
  const int top = (1 << format.bits) - 1;
  std::array<std::uint16_t, kMaxSize> block;
  for (std::size_t b = 0; b < blocks; ++b) {
    QuantGrid grid;
    if (!blockGridOf(headers + b * kBlockHeaderBytes, format.halfHeader, grid)) return false;
    const std::byte* const in = codes + packedBytes(b * format.size, format.bits);
    float* const out = values + b * format.size;
    if (!std::isfinite(grid.step * static_cast<float>(top))) {
      dequantizeWide(in, format.size, grid, format.bits, limit, out);
      continue;
    }
    unpack(in, format.size, format.bits, block.data());
    for (std::size_t j = 0; j < format.size; ++j) {
      const float value = grid.min + grid.step * static_cast<float>(block[j]);
      out[j] = std::clamp(value, -limit, limit);
    }
  }
  return true;
}

// ---- Rotations ----

void rotate(const float* values, std::size_t count, std::size_t size, float* rotated) {
  // Dividing first keeps every sum finite.
  const float shrink = 1.0f / static_cast<float>(size);
  for (std::size_t j = 0; j < count; ++j) rotated[j] = withSign(values[j] * shrink, j % size);
  for (std::size_t t = 0; t < count; t += size) multiplyByHadamard(rotated + t, size);
}

void rotateBack(float* values, std::size_t count, std::size_t size, float limit) {
  const float shrink = 1.0f / static_cast<float>(size);
  const auto grow = static_cast<float>(size);
  for (std::size_t j = 0; j < count; ++j) values[j] *= shrink;
  for (std::size_t t = 0; t < count; t += size) multiplyByHadamard(values + t, size);
  for (std::size_t j = 0; j < count; ++j)
    values[j] = std::clamp(withSign(values[j] * grow, j % size), -limit, limit);
}

// ---- Products of a matrix with a few vectors ----

float dotFrom(const float* sums, const float* a, const float* x, std::size_t j,
              std::size_t columns) {
  float sum = 0;
  for (std::size_t lane = 0; lane < kDotLanes; ++lane) sum += sums[lane];
  for (; j < columns; ++j) sum += a[j] * x[j];
  return sum;
}

void dots(const float* a, std::size_t rows, std::size_t columns, const float* x, std::size_t rank,
          std::size_t stride, float* product) {
  const std::size_t whole = columns / kDotLanes * kDotLanes;
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t r = 0; r < rank; ++r) {
      std::array<float, kDotLanes> sums{};
      for (std::size_t j = 0; j < whole; ++j) {
        sums[j % kDotLanes] += a[row * columns + j] * x[r * columns + j];
      }
      product[r * stride + row] =
          dotFrom(sums.data(), a + row * columns, x + r * columns, whole, columns);
    }
  }
}

void weightedSums(const Strip& a, const float* x, std::size_t rank, std::size_t stride,
                  float* product) {
  for (std::size_t r = 0; r < rank; ++r) {
    for (std::size_t j = 0; j < a.columns; ++j) {
      float sum = 0;
      for (std::size_t row = 0; row < a.rows; ++row) {
        sum += a.data[row * a.stride + j] * x[r * a.rows + row];
      }
      product[r * stride + j] = sum;
    }
  }
}

void outerRow(const float* left, std::size_t leftStride, const float* right, std::size_t j,
              std::size_t columns, std::size_t rank, float limit, float* out) {
  for (; j < columns; ++j) {
    float sum = 0;
    for (std::size_t r = 0; r < rank; ++r) sum += left[r * leftStride] * right[r * columns + j];
    const float bounded = sum <= limit ? sum : limit;
    out[j] = bounded >= -limit ? bounded : -limit;
  }
}

void outer(const float* left, std::size_t rows, std::size_t leftStride, const float* right,
           std::size_t columns, std::size_t rank, float limit, float* out) {
  for (std::size_t row = 0; row < rows; ++row) {
    outerRow(left + row, leftStride, right, 0, columns, rank, limit, out + row * columns);
  }
}

}  // namespace cleave::kernels::plain
