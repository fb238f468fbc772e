// Kernels of the codec `topk`. Elements are selected by three histograms of the magnitudes: over
// the top 11 bits, then over the next 10 bits, then over the last 10 bits:
//
//   Histogram, Choose (three times)   the magnitude of the last kept element, and how many elements
//                                     of exactly that magnitude are kept
//   Mark                              bitmaps of the elements above it, and of those equal to it
//   Offsets                           how many are kept before each tile
//   Gather                            the bitmap and the values
//
// Offsets and Gather are in bitmap_kernels.h. If the bitmap is already known, only Count, Offsets,
// and Gather or Scatter run.
#pragma once

#include "compression/device/bitmap_kernels.h"
#include "compression/device/grid_kernels.h"

namespace cleave::device {

inline constexpr std::uint32_t kBins = 2048;

struct TopKState {
  std::uint32_t bins[3][kBins];  // bins of the three histograms
  std::uint32_t missing;         // elements still to be kept, from the chosen magnitudes downwards
  std::uint32_t magnitude;  // bits of the magnitude chosen so far; finally, the magnitude of the
                            // last kept element
  struct Found {
    std::uint32_t faults;
    std::uint32_t distanceBytes;
  };
  Found found;  // results for the host
};

CLEAVE_DEVICE inline std::uint32_t magnitudeOf(float value) { return bitsOf(value) & ~kSign; }

// The lowest bit of the magnitudes that the histogram's bins use.
CLEAVE_DEVICE inline std::uint32_t shiftOf(std::uint32_t level) { return 20 - 10 * level; }

// Requires zeros in state->bins[level].
struct HistogramKernel {
  static constexpr int kPhases = 3;
  static constexpr std::uint32_t kMaxBlocks = 2048;
  struct Shared {
    std::uint32_t bins[kBins];
  };
  struct Thread {};

  Input in;
  TopKState* state;
  std::uint32_t level;  // 0…2

  std::uint32_t blocks() const { return lesser(tilesOf(in.elements), kMaxBlocks); }

  template <int kPhase>
  CLEAVE_DEVICE void run(Place at, Shared& shared, Thread&) const {
    if constexpr (kPhase == 0) {
      for (std::uint32_t b = at.thread; b < kBins; b += kThreads) shared.bins[b] = 0;
    } else if constexpr (kPhase == 1) {
      const std::uint32_t tiles = tilesOf(in.elements);
      for (std::uint32_t tile = at.block; tile < tiles; tile += at.blocks)
        count(tile, at.thread, shared);
    } else {
      for (std::uint32_t b = at.thread; b < kBins; b += kThreads) {
        if (shared.bins[b] > 0) addTo(state->bins[level][b], shared.bins[b]);
      }
    }
  }

  // Neighbours mostly fall into the same bin, so a run of equal bins is added with one operation.
  CLEAVE_DEVICE void count(std::uint32_t tile, std::uint32_t thread, Shared& shared) const {
    const std::uint32_t shift = shiftOf(level);
    const std::uint32_t chosen = level == 0 ? 0 : state->magnitude >> (shift + 10);
    const ThreadQuads mine = readTile(in, tileStart(tile), thread, 0);
    std::uint32_t bin = 0, run = 0;
    CLEAVE_UNROLL
    for (std::uint32_t k = 0; k < kQuads; ++k) {
      const std::uint32_t there = countOf(in.elements, quadStart(tile, quadIndex(thread, k)));
      CLEAVE_UNROLL
      for (std::uint32_t j = 0; j < 4; ++j) {
        const std::uint32_t magnitude = magnitudeOf(mine.quads[k].x[j]);
        if (j >= there || (level > 0 && magnitude >> (shift + 10) != chosen)) continue;
        const std::uint32_t next = magnitude >> shift & (level == 0 ? kBins - 1 : 1023);
        if (next != bin) {
          if (run > 0) addTo(shared.bins[bin], run);
          bin = next;
          run = 0;
        }
        ++run;
      }
    }
    if (run > 0) addTo(shared.bins[bin], run);
  }
};

// Walks down from the highest bin until the missing elements are found: first over 128 chunks of
// bins, then over the bins of one chunk.
struct ChooseKernel {
  static constexpr int kPhases = 2;
  static constexpr std::uint32_t kChunk = kBins / kThreads;
  static constexpr std::uint32_t kFirstNotFinite = kInfinityBits >> 20;
  struct Shared {
    std::uint32_t sums[kThreads];
  };
  struct Thread {};

  TopKState* state;
  std::uint32_t level;

  std::uint32_t blocks() const { return 1; }

  template <int kPhase>
  CLEAVE_DEVICE void run(Place at, Shared& shared, Thread&) const {
    const std::uint32_t* const bins = state->bins[level];
    if constexpr (kPhase == 0) {
      std::uint32_t sum = 0;
      for (std::uint32_t b = at.thread * kChunk; b < (at.thread + 1) * kChunk; ++b) {
        sum += bins[b];
        if (level == 0 && b >= kFirstNotFinite && bins[b] > 0)
          raise(state->found.faults, kNotFinite);
      }
      shared.sums[at.thread] = sum;
    } else if (at.thread == 0) {
      std::uint32_t missing = state->missing;
      std::uint32_t chunk = kThreads - 1;
      for (; chunk > 0 && shared.sums[chunk] < missing; --chunk) missing -= shared.sums[chunk];
      std::uint32_t b = (chunk + 1) * kChunk - 1;
      for (; b > chunk * kChunk && bins[b] < missing; --b) missing -= bins[b];
      state->missing = missing;
      state->magnitude |= b << shiftOf(level);
    }
  }
};

struct MarkKernel {
  static constexpr int kPhases = 3;
  struct Shared {
    std::uint8_t above[kTileQuads], equal[kTileQuads];
    std::uint32_t aboveCount, equalCount;
  };
  struct Thread {};

  Input in;
  const TopKState* state;
  std::uint32_t* above;  // words of whole tiles
  std::uint32_t* equal;  // words of whole tiles
  TileCount* tiles;

  std::uint32_t blocks() const { return tilesOf(in.elements); }

  template <int kPhase>
  CLEAVE_DEVICE void run(Place at, Shared& shared, Thread&) const {
    if constexpr (kPhase == 0) compare(at, shared);
    if constexpr (kPhase == 1) join(at, shared);
    if constexpr (kPhase == 2) {
      if (at.thread == 0) tiles[at.block] = {shared.aboveCount, shared.equalCount};
    }
  }

  CLEAVE_DEVICE void compare(Place at, Shared& shared) const {
    if (at.thread == 0) shared.aboveCount = shared.equalCount = 0;
    const std::uint64_t start = tileStart(at.block);
    const std::uint32_t magnitude = state->magnitude;
    const ThreadQuads mine = readTile(in, start, at.thread, 0);
    CLEAVE_UNROLL
    for (std::uint32_t k = 0; k < kQuads; ++k) {
      const std::uint32_t q = quadIndex(at.thread, k);
      const std::uint32_t count = countOf(in.elements, quadStart(at.block, q));
      std::uint32_t aboveBits = 0, equalBits = 0;
      CLEAVE_UNROLL
      for (std::uint32_t j = 0; j < 4; ++j) {
        const std::uint32_t here = magnitudeOf(mine.quads[k].x[j]);
        aboveBits |= j < count && here > magnitude ? 1u << j : 0;
        equalBits |= j < count && here == magnitude ? 1u << j : 0;
      }
      shared.above[q] = static_cast<std::uint8_t>(aboveBits);
      shared.equal[q] = static_cast<std::uint8_t>(equalBits);
    }
  }

  CLEAVE_DEVICE void join(Place at, Shared& shared) const {
    std::uint32_t aboveWord = 0, equalWord = 0;
    for (std::uint32_t k = 0; k < 8; ++k) {
      aboveWord |= std::uint32_t{shared.above[8 * at.thread + k]} << (4 * k);
      equalWord |= std::uint32_t{shared.equal[8 * at.thread + k]} << (4 * k);
    }
    above[at.block * std::uint64_t{kTileWords} + at.thread] = aboveWord;
    equal[at.block * std::uint64_t{kTileWords} + at.thread] = equalWord;
    addTo(shared.aboveCount, bitCount(aboveWord));
    addTo(shared.equalCount, bitCount(equalWord));
  }
};

}  // namespace cleave::device
