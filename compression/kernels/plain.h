// The kernels one value at a time, in plain C++: what the tests hold every instruction set against,
// and what runs where Highway has no vectors.
#pragma once

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
void quantize(const float* values, std::size_t count, Grid grid, int bits, std::byte* codes);
void dequantize(const std::byte* codes, std::size_t count, Grid grid, int bits, float* values);
bool encodeBlocks(const float* values, std::size_t blocks, const BlockFormat& format,
                  std::uint64_t first, std::byte* headers, std::byte* codes);
bool decodeBlocks(const std::byte* headers, const std::byte* codes, std::size_t blocks,
                  const BlockFormat& format, float limit, float* values);

void lookUp(const std::uint8_t* codes, std::size_t count, const float* table, float* values);
// Codes already in 0…2^bits - 1.
void pack(const std::uint16_t* codes, std::size_t count, int bits, std::byte* out);
void unpack(const std::byte* in, std::size_t count, int bits, std::uint16_t* codes);

// For exponents of normal numbers.
float powerOfTwo(int exponent);

// One value of each conversion.
std::uint16_t toHalf(float value);
float fromHalf(std::uint16_t half);
std::uint16_t toBf16(float value);
float fromBf16(std::uint16_t value);

// min and step of a block with this range.
Grid blockGrid(Range range, int top, bool halfHeader);
// Its header's bytes as a little-endian word: min, then step.
std::uint32_t blockHeader(Grid grid, bool halfHeader);
// The inverse. False where min is not finite, or step not finite and at least +0.
bool blockGridOf(const std::byte* header, bool halfHeader, Grid& grid);
// Whether fp32 does not do for a block: its range overflows, or its grid, whose min and step are
// bounded by the header's type, does not span it.
bool isWide(Range range, Grid grid, int top);
// Writes such a block's codes, in double and rounded to nearest; leaves others alone.
void quantizeIfWide(const float* values, const BlockFormat& format, Range range, Grid grid,
                    std::byte* codes);
void dequantizeWide(const std::byte* codes, std::size_t count, Grid grid, int bits, float limit,
                    float* values);

}  // namespace cleave::kernels::plain
