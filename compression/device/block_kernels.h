// Kernels of the codec `block`.
#pragma once

#include "compression/device/tile.h"

namespace cleave::device {

struct BlockParameters {
  std::uint32_t size = 64;  // values per block: 32, 64, …, kWarpElements
  std::uint32_t bits = 8;   // 1…8
  bool halfHeader = false;  // fp16 rather than bf16
  bool stochastic = false;
  std::uint32_t keyLow = 0, keyHigh = 0;  // for stochastic rounding
};

// One warp processes a block. Neighbouring lanes have neighbouring quads; in blocks of more than
// one row of 32 quads, each thread has several rows. So the range is reduced first within each
// thread, then across lanes. The code that runs the kernel does the second reduction: after phase
// kReduceAfter, it reduces each of Thread::ranges over reduceLanes() lanes.
struct EncodeBlocksKernel {
  static constexpr int kPhases = 3;
  static constexpr int kReduceAfter = 0;
  struct Shared {
    TileQuads tile;
  };
  struct Thread {
    ThreadQuads mine;
    Range ranges[kQuads];
  };

  Input in;
  BlockParameters format;
  std::uint32_t* headers;  // one per block
  std::uint32_t* codes;    // codeBytes()
  std::uint32_t* fault;    // set to 1 if a value is not finite

  std::uint32_t blocks() const { return tilesOf(in.elements); }
  CLEAVE_DEVICE std::uint32_t reduceLanes() const { return lesser(format.size / 4, kWarp); }

  template <int kPhase>
  CLEAVE_DEVICE void run(Place at, Shared& shared, Thread& thread) const {
    if constexpr (kPhase == 0) read(at, thread);
    if constexpr (kPhase == 1) quantize(at, shared, thread);
    if constexpr (kPhase == 2) writeWords(shared.tile, at, format.bits, codes);
  }

  CLEAVE_DEVICE std::uint64_t elementOf(Place at, std::uint32_t k) const {
    return quadStart(at.block, quadIndex(at.thread, k));
  }

  CLEAVE_DEVICE void read(Place at, Thread& thread) const {
    const std::uint64_t tile = tileStart(at.block);
    thread.mine = readTile(in, tile, at.thread, 0);
    if (in.elements - tile < kTileElements) fillUp(at, thread);
    bool finite = true;
    CLEAVE_UNROLL
    for (std::uint32_t k = 0; k < kQuads; ++k) {
      const float(&x)[4] = thread.mine.quads[k].x;
      CLEAVE_UNROLL
      for (std::uint32_t j = 0; j < 4; ++j) finite = finite && isFinite(x[j]);
      thread.ranges[k] = {lesser(lesser(x[0], x[1]), lesser(x[2], x[3])),
                          greater(greater(x[0], x[1]), greater(x[2], x[3]))};
    }
    if (!finite) raise(*fault, 1);
    // Reduces over the rows of a block, in steps that double the number of reduced rows.
    CLEAVE_UNROLL
    for (std::uint32_t rows = 1; rows < kQuads; rows *= 2) {
      if (rows * 4 * kWarp >= format.size) break;
      Range joined[kQuads];
      CLEAVE_UNROLL
      for (std::uint32_t k = 0; k < kQuads; ++k)
        joined[k] = join(thread.ranges[k], thread.ranges[k ^ rows]);
      CLEAVE_UNROLL
      for (std::uint32_t k = 0; k < kQuads; ++k) thread.ranges[k] = joined[k];
    }
  }

  // Elements beyond the end get the first value of their block, which leaves its range unchanged.
  CLEAVE_DEVICE void fillUp(Place at, Thread& thread) const {
    CLEAVE_UNROLL
    for (std::uint32_t k = 0; k < kQuads; ++k) {
      const std::uint64_t start = elementOf(at, k);
      const std::uint64_t first = start / format.size * format.size;
      if (first < in.elements) thread.mine.quads[k] = readFour(in, start, valueOf(in, first));
    }
  }

  static CLEAVE_DEVICE Range join(Range a, Range b) {
    return {lesser(a.min, b.min), greater(a.max, b.max)};
  }

  static CLEAVE_DEVICE CLEAVE_RARE std::uint32_t wideQuad(FourFloats four, QuantGrid grid,
                                                          std::uint32_t bits) {
    std::uint32_t quad = 0;
    CLEAVE_UNROLL
    for (std::uint32_t j = 0; j < 4; ++j)
      quad |= wideBlockCode(four.x[j], grid, (1 << bits) - 1) << (j * bits);
    return quad;
  }

  CLEAVE_DEVICE void quantize(Place at, Shared& shared, const Thread& thread) const {
    const int top = (1 << format.bits) - 1;
    const auto maxCode = static_cast<float>(top);
    CLEAVE_UNROLL
    for (std::uint32_t k = 0; k < kQuads; ++k) {
      const std::uint64_t start = elementOf(at, k);
      const Range range{thread.ranges[k].min + 0.0f, thread.ranges[k].max + 0.0f};
      const QuantGrid grid = blockGrid(range, top, format.halfHeader);
      const float inverse = grid.step > 0 ? 1.0f / grid.step : 0.0f;
      const FourFloats& four = thread.mine.quads[k];
      std::uint32_t quad = 0;
      if (isWide(range, grid, top)) {
        quad = wideQuad(four, grid, format.bits);
      } else {
        CLEAVE_UNROLL
        for (std::uint32_t j = 0; j < 4; ++j) {
          const float draw = format.stochastic ? drawFor(static_cast<std::uint32_t>(start + j),
                                                         format.keyLow, format.keyHigh)
                                               : 0;
          quad |= blockCode(four.x[j], grid.min, inverse, draw, maxCode) << (j * format.bits);
        }
      }
      const std::uint32_t count = countOf(in.elements, start);
      if (count < 4) quad &= (1u << (count * format.bits)) - 1;
      shared.tile.quads[quadIndex(at.thread, k)] = quad;
      if (start % format.size == 0 && count > 0)
        headers[start / format.size] = blockHeader(grid, format.halfHeader);
    }
  }
};

struct DecodeBlocksKernel {
  static constexpr int kPhases = 2;
  using Shared = TileWords;
  struct Thread {};

  const std::uint32_t* headers;
  const std::uint32_t* codes;  // codeBytes()
  BlockParameters format;
  float limit;           // maximum magnitude of the values
  std::uint32_t* fault;  // set to 1 if a header is invalid
  Output out;

  std::uint32_t blocks() const { return tilesOf(out.elements); }

  template <int kPhase>
  CLEAVE_DEVICE void run(Place at, Shared& shared, Thread&) const {
    if constexpr (kPhase == 0) readWords(shared, at, format.bits, codes);
    if constexpr (kPhase == 1) write(at, shared);
  }

  CLEAVE_DEVICE void write(Place at, const Shared& shared) const {
    const auto top = static_cast<float>((1 << format.bits) - 1);
    CLEAVE_UNROLL
    for (std::uint32_t k = 0; k < kQuads; ++k) {
      const std::uint32_t q = quadIndex(at.thread, k);
      const std::uint64_t start = quadStart(at.block, q);
      if (start >= out.elements) continue;
      QuantGrid grid;
      if (!blockGridOf(headers[start / format.size], format.halfHeader, grid)) {
        raise(*fault, 1);
        continue;
      }
      const bool wide = !isFinite(grid.step * top);
      const std::uint64_t quad = quadOf(shared, q, format.bits);
      FourFloats four;
      CLEAVE_UNROLL
      for (std::uint32_t j = 0; j < 4; ++j)
        four.x[j] = blockValue(codeOfQuad(quad, j, format.bits), grid, wide, limit);
      writeFour(out, start, four);
    }
  }
};

}  // namespace cleave::device
