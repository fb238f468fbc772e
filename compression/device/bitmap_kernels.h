// Kernels over bitmaps of a tensor's elements: bit j % 32 of word j / 32 belongs to element j. A
// tile's words are contiguous, one per thread of a block; bitmaps have the words of whole tiles.
#pragma once

#include "compression/device/tile.h"

namespace cleave::device {

inline constexpr std::uint32_t kTileWords = kTileElements / 32;
static_assert(kTileWords == kThreads);

// The counts of a tile; after OffsetsKernel, the total counts of the tiles before it.
struct TileCount {
  std::uint32_t above = 0;  // elements above the threshold, all of which are kept
  std::uint32_t equal = 0;
};

// Counts the set bits of a bitmap as `above`.
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

// Returns the sum, limited to 2^31 - 1, so that a peer's data cannot make it wrap around to a small
// number. Requires a and b of at most 2^31 - 1.
CLEAVE_DEVICE inline std::uint32_t boundedSum(std::uint32_t a, std::uint32_t b) {
  return lesser(a + b, 0x7fffffffu);
}

// Sets tiles[t] to the counts before tile t: `equal` counts all equal elements, `above` all kept
// elements.
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
  const std::uint32_t* ties;       // number of equal elements that are kept; null: none
  std::uint32_t* total = nullptr;  // receives the number of kept elements; may be null

  std::uint32_t blocks() const { return 1; }

  template <int kPhase>
  CLEAVE_DEVICE void run(Place at, Shared& shared, Thread& thread) const {
    const std::uint32_t each = (count + kThreads - 1) / kThreads;
    const std::uint32_t first = lesser(at.thread * each, count);
    const std::uint32_t end = lesser(first + each, count);
    const std::uint32_t maxTies = ties == nullptr ? 0 : *ties;
    if constexpr (kPhase == 0) {
      std::uint32_t sum = 0;
      for (std::uint32_t t = first; t < end; ++t) sum += tiles[t].equal;
      shared.sums[at.thread] = sum;
    } else if constexpr (kPhase == 2) {
      thread.equal = shared.sums[at.thread];
      shared.sums[at.thread] = walk(first, end, maxTies, thread.equal, 0, false);
    } else if constexpr (kPhase == 4) {
      const std::uint32_t kept =
          walk(first, end, maxTies, thread.equal, shared.sums[at.thread], true);
      if (at.thread == kThreads - 1 && total != nullptr) *total = kept;
    } else if (at.thread == 0) {
      accumulate(shared);
    }
  }

  // Returns the number of elements kept before tile `end`, given `equal` and `kept` before tile
  // `first`. If `write` is set, writes each tile's offsets.
  CLEAVE_DEVICE std::uint32_t walk(std::uint32_t first, std::uint32_t end, std::uint32_t maxTies,
                                   std::uint32_t equal, std::uint32_t kept, bool write) const {
    for (std::uint32_t t = first; t < end; ++t) {
      const TileCount here = tiles[t];
      if (write) tiles[t] = {kept, equal};
      kept = boundedSum(kept, here.above + lesser(here.equal, maxTies - lesser(equal, maxTies)));
      equal += here.equal;
    }
    return kept;
  }

  // Replaces each count with the sum of the counts before it.
  static CLEAVE_DEVICE void accumulate(Shared& shared) {
    std::uint32_t sum = 0;
    for (std::uint32_t t = 0; t < kThreads; ++t) {
      const std::uint32_t here = shared.sums[t];
      shared.sums[t] = sum;
      sum = boundedSum(sum, here);
    }
  }
};

// The sum of the counts of the threads before this one.
CLEAVE_DEVICE inline std::uint32_t sumBefore(const std::uint32_t* counts, std::uint32_t thread) {
  std::uint32_t sum = 0;
  for (std::uint32_t t = 0; t < thread; ++t) sum = boundedSum(sum, counts[t]);
  return sum;
}

// Loads an element of 2 or 4 bytes as raw bits.
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

// Collects the kept values in the tensor's order.
struct GatherKernel {
  static constexpr int kPhases = 3;
  struct Shared {
    std::uint32_t equal[kThreads], kept[kThreads];
  };
  struct Thread {
    std::uint32_t word = 0;
  };

  Input in;
  std::uint32_t* bitmap;       // in: elements above the threshold; out: all kept elements
  const std::uint32_t* equal;  // elements equal to the threshold; null: none
  const std::uint32_t* ties;   // how many of these are kept, in order; null if `equal` is
  const TileCount* tiles;      // counts before each tile
  std::byte* values;           // in the tensor's type
  std::uint32_t capacity;      // capacity of `values`
  std::uint32_t* places;       // receives the indices of the values in the tensor; may be null

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
      if (to < capacity) {
        storeBits(loadBits(in.data, start + j, wide), values, to, wide);
        if (places != nullptr) places[to] = static_cast<std::uint32_t>(start + j);
      }
      ++to;
    }
  }
};

// Writes the tensor with these values at the bitmap's bits, and zeros elsewhere.
struct ScatterKernel {
  static constexpr int kPhases = 3;
  struct Shared {
    std::uint32_t kept[kThreads];
    // Each word's elements start in a different bank.
    std::uint32_t elements[kTileElements + kThreads];
  };
  struct Thread {};

  const std::uint32_t* bitmap;  // words of whole tiles; no more bits set than there are values
  const TileCount* tiles;       // counts before each tile
  const std::byte* values;
  std::uint32_t* fault;  // set to 1 if a value is not finite
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
      const std::uint64_t start = tileStart(at.block);
      for (std::uint32_t e = at.thread; e < kTileElements; e += kThreads) {
        if (start + e < out.elements)
          storeBits(shared.elements[e / 32 * 33 + e % 32], out.data, start + e, wide);
      }
    }
  }
};

}  // namespace cleave::device
