// Kernels of the codec `topk`. Which elements are kept is found as its CPU twin finds it, by a
// histogram over the top 11 bits of the magnitudes, then two more over the 10 bits below each:
//
//   Histogram, Choose (three times)   the magnitude of the last element kept, and how many of
//                                     just that magnitude are kept
//   Mark                              words of the elements above it, and of those equal to it
//   Offsets                           how many are kept before each tile
//   Gather                            the bitmap and the values
//
// A bitmap that is known already passes Count, Offsets, and Gather or Scatter.
#pragma once

#include "compression/device/grid_kernels.h"

namespace cleave::device {

inline constexpr std::uint32_t kBins = 2048;
inline constexpr std::uint32_t kTileWords = kTileElements / 32;
static_assert(kTileWords == kThreads);

struct TopKState {
  std::uint32_t bins[3][kBins];  // of the three histograms
  std::uint32_t missing;    // elements still to be kept, from the magnitudes chosen on downwards
  std::uint32_t magnitude;  // its bits chosen so far; in the end, of the last element kept
  struct Found {
    std::uint32_t faults;
    std::uint32_t distanceBytes;
  };
  Found found;  // what the host wants to know
};

CLEAVE_DEVICE inline std::uint32_t magnitudeOf(float value) { return bitsOf(value) & ~kSign; }

// Lowest bit of the histogram's bin in a magnitude.
CLEAVE_DEVICE inline std::uint32_t shiftOf(std::uint32_t level) { return 20 - 10 * level; }

// Requires state->bins[level] of zeros.
struct HistogramKernel {
  static constexpr int kPhases = 3;
  static constexpr std::uint32_t kMostBlocks = 2048;
  struct Shared {
    std::uint32_t bins[kBins];
  };
  struct Thread {};

  Input in;
  TopKState* state;
  std::uint32_t level;  // 0…2

  std::uint32_t blocks() const { return lesser(tilesOf(in.elements), kMostBlocks); }

  template <int kPhase>
  CLEAVE_DEVICE void run(Place at, Shared& shared, Thread&) const {
    if constexpr (kPhase == 0) {
      for (std::uint32_t b = at.thread; b < kBins; b += kThreads) shared.bins[b] = 0;
    } else if constexpr (kPhase == 1) {
      const std::uint32_t tiles = tilesOf(in.elements);
      for (std::uint32_t tile = at.block; tile < tiles; tile += at.blocks)
        count(std::uint64_t{tile} * kTileElements, at.thread, shared);
    } else {
      for (std::uint32_t b = at.thread; b < kBins; b += kThreads) {
        if (shared.bins[b] > 0) addTo(state->bins[level][b], shared.bins[b]);
      }
    }
  }

  // Neighbours mostly fall into the same bin: they are added together.
  CLEAVE_DEVICE void count(std::uint64_t start, std::uint32_t thread, Shared& shared) const {
    const std::uint32_t shift = shiftOf(level);
    const std::uint32_t chosen = level == 0 ? 0 : state->magnitude >> (shift + 10);
    const ThreadQuads mine = readTile(in, start, thread, 0);
    std::uint32_t bin = 0, run = 0;
    CLEAVE_UNROLL
    for (std::uint32_t k = 0; k < kQuads; ++k) {
      const std::uint32_t there = countOf(in.elements, start + 4 * quadIndex(thread, k));
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

// Walks down from the greatest bin until the missing elements are found. 128 chunks of bins first,
// then the bins of one.
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

// ---- Bitmaps: bit j % 32 of word j / 32 is element j's, a tile's words side by side ----

// What the tiles have, and later what comes before each.
struct TileCount {
  std::uint32_t above = 0;  // elements above the threshold: kept all
  std::uint32_t equal = 0;
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
  std::uint32_t* equal;  // likewise
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
    const std::uint64_t start = std::uint64_t{at.block} * kTileElements;
    const std::uint32_t magnitude = state->magnitude;
    const ThreadQuads mine = readTile(in, start, at.thread, 0);
    CLEAVE_UNROLL
    for (std::uint32_t k = 0; k < kQuads; ++k) {
      const std::uint32_t q = quadIndex(at.thread, k);
      const std::uint32_t count = countOf(in.elements, start + 4 * q);
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

// Of a bitmap: all that it has counts as above.
struct CountKernel {
  static constexpr int kPhases = 3;
  struct Shared {
    std::uint32_t count;
  };
  struct Thread {};

  const std::uint32_t* bitmap;
  std::uint64_t elements;
  TileCount* tiles;

  std::uint32_t blocks() const { return tilesOf(elements); }

  template <int kPhase>
  CLEAVE_DEVICE void run(Place at, Shared& shared, Thread&) const {
    if constexpr (kPhase == 0) {
      if (at.thread == 0) shared.count = 0;
    }
    if constexpr (kPhase == 1)
      addTo(shared.count, bitCount(bitmap[at.block * std::uint64_t{kTileWords} + at.thread]));
    if constexpr (kPhase == 2) {
      if (at.thread == 0) tiles[at.block] = {shared.count, 0};
    }
  }
};

// Sums of what a peer has sent do not come round to small numbers again: they end at 2^31 - 1. Of
// two such.
CLEAVE_DEVICE inline std::uint32_t boundedSum(std::uint32_t a, std::uint32_t b) {
  return lesser(a + b, 0x7fffffffu);
}

// tiles[t] becomes what the tiles before t have: `equal` all of them, `above` all that are kept.
struct OffsetsKernel {
  static constexpr int kPhases = 5;
  struct Shared {
    std::uint32_t sums[kThreads];
  };
  struct Thread {
    std::uint32_t equal = 0;  // before the thread's tiles
  };

  TileCount* tiles;
  std::uint32_t count;
  const std::uint32_t* ties;       // so many of the equal ones are kept; null: none are
  std::uint32_t* total = nullptr;  // becomes what all tiles have that is kept; null: not wanted

  std::uint32_t blocks() const { return 1; }

  template <int kPhase>
  CLEAVE_DEVICE void run(Place at, Shared& shared, Thread& thread) const {
    const std::uint32_t each = (count + kThreads - 1) / kThreads;
    const std::uint32_t first = lesser(at.thread * each, count);
    const std::uint32_t end = lesser(first + each, count);
    const std::uint32_t most = ties == nullptr ? 0 : *ties;
    if constexpr (kPhase == 0) {
      std::uint32_t sum = 0;
      for (std::uint32_t t = first; t < end; ++t) sum += tiles[t].equal;
      shared.sums[at.thread] = sum;
    } else if constexpr (kPhase == 2) {
      thread.equal = shared.sums[at.thread];
      shared.sums[at.thread] = walk(first, end, most, thread.equal, 0, false);
    } else if constexpr (kPhase == 4) {
      const std::uint32_t kept = walk(first, end, most, thread.equal, shared.sums[at.thread], true);
      if (at.thread == kThreads - 1 && total != nullptr) *total = kept;
    } else if (at.thread == 0) {
      accumulate(shared);
    }
  }

  // What is kept of the tiles, `equal` and `kept` being before them. Writes it down if asked.
  CLEAVE_DEVICE std::uint32_t walk(std::uint32_t first, std::uint32_t end, std::uint32_t most,
                                   std::uint32_t equal, std::uint32_t kept, bool write) const {
    for (std::uint32_t t = first; t < end; ++t) {
      const TileCount here = tiles[t];
      if (write) tiles[t] = {kept, equal};
      kept = boundedSum(kept, here.above + lesser(here.equal, most - lesser(equal, most)));
      equal += here.equal;
    }
    return kept;
  }

  // Each becomes the sum of those before it.
  static CLEAVE_DEVICE void accumulate(Shared& shared) {
    std::uint32_t sum = 0;
    for (std::uint32_t t = 0; t < kThreads; ++t) {
      const std::uint32_t here = shared.sums[t];
      shared.sums[t] = sum;
      sum = boundedSum(sum, here);
    }
  }
};

// The sum of what the threads before this one have.
CLEAVE_DEVICE inline std::uint32_t sumBefore(const std::uint32_t* counts, std::uint32_t thread) {
  std::uint32_t sum = 0;
  for (std::uint32_t t = 0; t < thread; ++t) sum = boundedSum(sum, counts[t]);
  return sum;
}

// Elements as they are, of 2 or 4 bytes.
CLEAVE_DEVICE inline std::uint32_t loadBits(const std::byte* from, std::uint64_t j, bool wide) {
  return wide ? reinterpret_cast<const std::uint32_t*>(from)[j]
              : reinterpret_cast<const std::uint16_t*>(from)[j];
}
CLEAVE_DEVICE inline void storeBits(std::uint32_t bits, std::byte* to, std::uint64_t j, bool wide) {
  if (wide) {
    reinterpret_cast<std::uint32_t*>(to)[j] = bits;
  } else {
    reinterpret_cast<std::uint16_t*>(to)[j] = static_cast<std::uint16_t>(bits);
  }
}

// The values that are kept, in the tensor's order.
struct GatherKernel {
  static constexpr int kPhases = 3;
  struct Shared {
    std::uint32_t equal[kThreads], kept[kThreads];
  };
  struct Thread {
    std::uint32_t word = 0;
  };

  Input in;
  std::uint32_t* bitmap;       // of the elements above the threshold; becomes that of all kept
  const std::uint32_t* equal;  // of those at it; null: none
  const std::uint32_t* ties;   // so many of them are kept, the first ones; null with `equal`
  const TileCount* tiles;      // what comes before each
  std::byte* values;           // of the tensor's type
  std::uint32_t most;          // values that there is room for
  std::uint32_t* places;       // of the values, in the tensor; null: not wanted

  std::uint32_t blocks() const { return tilesOf(in.elements); }

  template <int kPhase>
  CLEAVE_DEVICE void run(Place at, Shared& shared, Thread& thread) const {
    const std::uint64_t word = at.block * std::uint64_t{kTileWords} + at.thread;
    if constexpr (kPhase == 0) {
      shared.equal[at.thread] = equal == nullptr ? 0 : bitCount(equal[word]);
    } else if constexpr (kPhase == 1) {
      thread.word = bitmap[word];
      if (equal != nullptr) {
        thread.word |= firstTies(at, shared, equal[word]);
        bitmap[word] = thread.word;
      }
      shared.kept[at.thread] = bitCount(thread.word);
    } else {
      copy(word * 32, thread.word, tiles[at.block].above + sumBefore(shared.kept, at.thread));
    }
  }

  CLEAVE_DEVICE std::uint32_t firstTies(Place at, const Shared& shared, std::uint32_t ones) const {
    const std::uint32_t before = tiles[at.block].equal + sumBefore(shared.equal, at.thread);
    std::uint32_t rest = ones;
    for (std::uint32_t left = *ties - lesser(before, *ties); left > 0 && rest != 0; --left)
      rest &= rest - 1;
    return ones & ~rest;
  }

  CLEAVE_DEVICE void copy(std::uint64_t start, std::uint32_t word, std::uint32_t to) const {
    const bool wide = in.dtype == DType::f32;
    for (std::uint32_t j = 0; j < 32; ++j) {
      if ((word >> j & 1) == 0) continue;
      if (to < most) {
        storeBits(loadBits(in.data, start + j, wide), values, to, wide);
        if (places != nullptr) places[to] = static_cast<std::uint32_t>(start + j);
      }
      ++to;
    }
  }
};

// The tensor with these values, and zeros for the others.
struct ScatterKernel {
  static constexpr int kPhases = 3;
  struct Shared {
    std::uint32_t kept[kThreads];
    // A word's elements begin in a bank of their own.
    std::uint32_t elements[kTileElements + kThreads];
  };
  struct Thread {};

  const std::uint32_t* bitmap;  // words of whole tiles; as many bits as values
  const TileCount* tiles;       // what comes before each
  const std::byte* values;
  std::uint32_t* fault;  // becomes 1 where a value is not finite
  Output out;

  std::uint32_t blocks() const { return tilesOf(out.elements); }

  template <int kPhase>
  CLEAVE_DEVICE void run(Place at, Shared& shared, Thread&) const {
    const bool wide = out.dtype == DType::f32;
    const std::uint32_t word = bitmap[at.block * std::uint64_t{kTileWords} + at.thread];
    if constexpr (kPhase == 0) {
      shared.kept[at.thread] = bitCount(word);
    } else if constexpr (kPhase == 1) {
      const std::uint32_t exponent = wide                      ? kInfinityBits
                                     : out.dtype == DType::f16 ? 0x7c00
                                                               : 0x7f80;
      std::uint32_t from = tiles[at.block].above + sumBefore(shared.kept, at.thread);
      bool finite = true;
      for (std::uint32_t j = 0; j < 32; ++j) {
        std::uint32_t bits = 0;
        if (word >> j & 1) {
          bits = loadBits(values, from++, wide);
          finite = finite && (bits & exponent) != exponent;
        }
        shared.elements[at.thread * 33 + j] = bits;
      }
      if (!finite) raise(*fault, 1);
    } else {
      const std::uint64_t start = at.block * std::uint64_t{kTileElements};
      for (std::uint32_t e = at.thread; e < kTileElements; e += kThreads) {
        if (start + e < out.elements)
          storeBits(shared.elements[e / 32 * 33 + e % 32], out.data, start + e, wide);
      }
    }
  }
};

}  // namespace cleave::device
