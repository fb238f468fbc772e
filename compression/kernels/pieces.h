// Kernels of codecs whose grid differs between pieces of the value range. Like those in kernels.h,
// they are compiled for each instruction set, selected at run time, and bit-identical.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace cleave {

// A value x belongs to piece p, the number of bounds[1…pieces - 1] that are <= x. Its code is
// p << bits | min(round((x - mins[p]) / divisors[p]), 2^bits - 1), in fp32, ties to even.
// If bits is 0, the code is p. The arrays have 2^pieceBits elements; bounds[0] is not read.
struct PieceGrids {
  static constexpr std::size_t kMaxPieces = 256;

  int bits = 0;       // 0…16
  int pieceBits = 0;  // 0…8
  alignas(64) std::array<float, kMaxPieces> bounds{};
  alignas(64) std::array<float, kMaxPieces> mins{};
  alignas(64) std::array<float, kMaxPieces> divisors{};
  // The bounds as a binary tree with its root at index 1; filled by prepare().
  alignas(64) std::array<float, kMaxPieces> tree{};

  void prepare();
};

// Requires x >= mins[p] for every value, and a prepared grid. For codes in bytes, also
// bits + pieceBits <= 8.
void codesOf(const float* values, std::size_t count, const PieceGrids& grids, std::uint8_t* codes);
void codesOf(const float* values, std::size_t count, const PieceGrids& grids, std::uint16_t* codes);

// For tests: this machine's instruction sets as a bit mask, and a selection among them (0: all).
std::int64_t instructionSets();
void chooseInstructionSets(std::int64_t sets);

}  // namespace cleave
