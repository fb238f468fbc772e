// The kernels in plain C++, one value at a time: the reference that tests compare every instruction
// set with, and the fallback if Highway has no vectors.
#pragma once

#include <array>
#include <bit>

#include "compression/kernels/kernels.h"

namespace cleave::kernels::plain {

Range rangeOf(const float* values, std::size_t count);
void floatFromHalf(const std::byte* in, std::size_t count, float* out);
void halfFromFloat(const float* in, std::size_t count, std::byte* out);
void floatFromBf16(const std::byte* in, std::size_t count, float* out);
void bf16FromFloat(const float* in, std::size_t count, std::byte* out);
void fp8FromFloat(const float* in, std::size_t count, Fp8 format, int exponent, std::byte* out);
bool floatFromFp8(const std::byte* in, std::size_t count, Fp8 format, int exponent, float limit,
                  float* out);
void quantize(const float* values, std::size_t count, QuantGrid grid, int bits, std::byte* codes);
void dequantize(const std::byte* codes, std::size_t count, QuantGrid grid, int bits, float* values);
bool encodeBlocks(const float* values, std::size_t blocks, const BlockFormat& format,
                  std::uint64_t first, std::byte* headers, std::byte* codes);
bool decodeBlocks(const std::byte* headers, const std::byte* codes, std::size_t blocks,
                  const BlockFormat& format, float limit, float* values);

void rotate(const float* values, std::size_t count, std::size_t size, float* rotated);
void rotateBack(float* values, std::size_t count, std::size_t size, float limit);
void dots(const float* a, std::size_t rows, std::size_t columns, const float* x, std::size_t rank,
          std::size_t stride, float* product);
void weightedSums(const Strip& a, const float* x, std::size_t rank, std::size_t stride,
                  float* product);
void outer(const float* left, std::size_t rows, std::size_t leftStride, const float* right,
           std::size_t columns, std::size_t rank, float limit, float* out);
// The end of a dot product: the kDotLanes sums, and columns j…columns - 1.
float dotFrom(const float* sums, const float* a, const float* x, std::size_t j,
              std::size_t columns);
// Columns j…columns - 1 of one row of outer(); `left` is its first element.
void outerRow(const float* left, std::size_t leftStride, const float* right, std::size_t j,
              std::size_t columns, std::size_t rank, float limit, float* out);
// The sign bit of s[j]. These signs, the Golay-Rudin-Shapiro sequence, also spread constant tiles
// evenly, which H alone would concentrate in one value.
alignas(64) inline constexpr auto kRotationSigns = [] {
  std::array<std::uint32_t, 1024> signs{};
  for (std::uint32_t j = 0; j < signs.size(); ++j) {
    signs[j] = static_cast<std::uint32_t>(std::popcount(j & (j >> 1)) % 2) << 31;
  }
  return signs;
}();

void lookUp(const std::uint8_t* codes, std::size_t count, const float* table, float* values);
// Requires codes in 0…2^bits - 1.
void pack(const std::uint16_t* codes, std::size_t count, int bits, std::byte* out);
void unpack(const std::byte* in, std::size_t count, int bits, std::uint16_t* codes);

// Requires the exponent of a normal number.
float powerOfTwo(int exponent);

// The functions below convert one value.
std::uint16_t toHalf(float value);
float fromHalf(std::uint16_t half);
std::uint16_t toBf16(float value);
float fromBf16(std::uint16_t value);

// min and step of a block with this range.
QuantGrid blockGrid(Range range, int top, bool halfHeader);
// The bytes of a block's header as a little-endian word: min, then step.
std::uint32_t blockHeader(QuantGrid grid, bool halfHeader);
// The inverse of blockHeader(). Returns false if min is not finite, or step is negative or not
// finite.
bool blockGridOf(const std::byte* header, bool halfHeader, QuantGrid& grid);
// Whether a block must be computed in double: its range overflows fp32, or the grid does not cover
// the range because the header's type limits min and step.
bool isWide(Range range, QuantGrid grid, int top);
// Writes the codes of a wide block, computed in double and rounded to nearest; leaves other blocks
// unchanged.
void quantizeIfWide(const float* values, const BlockFormat& format, Range range, QuantGrid grid,
                    std::byte* codes);
void dequantizeWide(const std::byte* codes, std::size_t count, QuantGrid grid, int bits,
                    float limit, float* values);

}  // namespace cleave::kernels::plain
