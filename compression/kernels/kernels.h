// The codecs' inner loops, on pointers and sizes instead of tensors. Each kernel is written once
// with Highway, compiled for every instruction set, and selected at run time. plain.h has a scalar
// version of the same name with bit-identical results. Pointers need no alignment; ranges must not
// overlap.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cleave::kernels {

struct Range {
  float min = 0;       // +0 rather than -0
  float max = 0;       // +0 rather than -0
  bool finite = true;  // if false, the other two are undefined
};

// Requires count > 0.
Range rangeOf(const float* values, std::size_t count);

// Conversions round to nearest, ties to even. NaN stays NaN (narrowing makes it quiet and keeps the
// top bits of its payload), values that are too large become infinity, subnormals are exact.
void floatFromHalf(const std::byte* in, std::size_t count, float* out);
void halfFromFloat(const float* in, std::size_t count, std::byte* out);
void floatFromBf16(const std::byte* in, std::size_t count, float* out);
void bf16FromFloat(const float* in, std::size_t count, std::byte* out);

// 8-bit floats times 2^exponent, finite values only, with exponent in -126…126.
enum class Fp8 { e4m3, e5m2 };
// The largest code of a finite value, without its sign.
constexpr std::uint32_t fp8MaxCode(Fp8 format) { return format == Fp8::e4m3 ? 0x7e : 0x7b; }
// Requires magnitudes of at most 448 * 2^exponent (e4m3) or 57344 * 2^exponent (e5m2).
void fp8FromFloat(const float* in, std::size_t count, Fp8 format, int exponent, std::byte* out);
// Clamps values to magnitudes of at most `limit`. Returns false if a code represents NaN or
// infinity.
bool floatFromFp8(const std::byte* in, std::size_t count, Fp8 format, int exponent, float limit,
                  float* out);

// Bytes for `count` codes of `bits` each. The first code is in the lowest bits of the first byte;
// the last byte is padded with zeros.
constexpr std::size_t packedBytes(std::size_t count, int bits) {
  return (count * static_cast<std::size_t>(bits) + 7) / 8;
}

// How codes map to values: min + step * code.
struct QuantGrid {
  float min = 0;
  float step = 0;
};

// code = round((value - min) / step), at most 2^bits - 1; bits in 1…16. Requires finite values >=
// min with a finite difference from it; step > 0. Writes packedBytes().
void quantize(const float* values, std::size_t count, QuantGrid grid, int bits, std::byte* codes);
// value = min + step * code. Reads packedBytes().
void dequantize(const std::byte* codes, std::size_t count, QuantGrid grid, int bits, float* values);

// value = table[code], for codes of 1…8 bits stored in a byte each. The table has 2^bits values; at
// least kMinTable must be readable.
inline constexpr std::size_t kMinTable = 32;
void lookUp(const std::uint8_t* codes, std::size_t count, int bits, const float* table,
            float* values);

// The upper bits of a code select a piece, the lower `bits` a position in it.
struct PieceLines {
  static constexpr std::size_t kMaxPieces = 16;
  int bits = 0;
  int pieceBits = 0;
  float mins[kMaxPieces] = {};
  float steps[kMaxPieces] = {};
};
// value = min + step * position, using the instruction set's own multiply-add: unlike all other
// kernels, not bit-identical between instruction sets. Requires bits + pieceBits <= 8, pieceBits <=
// 4. Returns false if the vectors have fewer lanes than there are pieces.
bool valuesInPieces(const std::uint8_t* codes, std::size_t count, const PieceLines& lines,
                    float* values);

// The names match the format in compression/block.cpp.
struct BlockFormat {
  std::size_t size = 64;    // values per block: 32, 64, …, 1024
  int bits = 8;             // 1…8
  bool halfHeader = false;  // fp16 rather than bf16
  bool stochastic = false;
  std::uint32_t keyLow = 0, keyHigh = 0;  // for stochastic rounding
};
inline constexpr std::size_t kBlockHeaderBytes = 4;

// Encodes `blocks` whole blocks; `first` is the index of their first value in the tensor. Writes
// blocks * kBlockHeaderBytes to `headers` and packedBytes(blocks * size, bits) to `codes`. Returns
// false if a value is not finite; the output is then undefined.
bool encodeBlocks(const float* values, std::size_t blocks, const BlockFormat& format,
                  std::uint64_t first, std::byte* headers, std::byte* codes);
// Returns false if a header's min is not finite, or its step is negative or not finite. Clamps
// values to magnitudes of at most `limit`.
bool decodeBlocks(const std::byte* headers, const std::byte* codes, std::size_t blocks,
                  const BlockFormat& format, float limit, float* values);

// Multiplies each tile of `size` values, a power of two in 32…1024, by a Hadamard matrix:
//
//   rotate:      y = H (s x) / size      H[i][j] = -1 if i & j has an odd number of bits, else 1
//   rotateBack:  x = s (H y)             s[j] = -1 if j & (j >> 1) has an odd number of bits, else
//   1
//
// H is computed by butterflies (a, b) -> (a + b, a - b) of elements j and j + stride, for stride =
// 1, 2, 4, …, size / 2. Requires whole tiles. The result contains a NaN or infinity in each tile
// that contains one, and in no other.
void rotate(const float* values, std::size_t count, std::size_t size, float* rotated);
// Requires finite values. Clamps the results to magnitudes of at most `limit`; no intermediate
// result overflows unless the result does.
void rotateBack(float* values, std::size_t count, std::size_t size, float limit);

// Products of a matrix with `rank` vectors that follow each other in memory. Results are `stride`
// apart from one vector to the next.
//
// product[r][row] = the dot product of row `row` of `a` and x[r]. Column j is added to sum j %
// kDotLanes, as far as there are whole groups of kDotLanes columns; then the sums are added in
// order, and last the other columns.
inline constexpr std::size_t kDotLanes = 16;
void dots(const float* a, std::size_t rows, std::size_t columns, const float* x, std::size_t rank,
          std::size_t stride, float* product);
// Columns of a matrix: its rows are `stride` apart.
struct Strip {
  const float* data = nullptr;
  std::size_t rows = 0, columns = 0, stride = 0;
};
// product[r][j] = the sum over rows of a[row][j] * x[r][row], from the first row to the last.
void weightedSums(const Strip& a, const float* x, std::size_t rank, std::size_t stride,
                  float* product);
// out[row][j] = the sum over r of left[r][row] * right[r][j], from the first r to the last, clamped
// to magnitudes of at most `limit`; NaN becomes `limit`. The vectors of `left` are leftStride
// apart.
void outer(const float* left, std::size_t rows, std::size_t leftStride, const float* right,
           std::size_t columns, std::size_t rank, float limit, float* out);

}  // namespace cleave::kernels
