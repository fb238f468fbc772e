// Kernels for the distances between the elements that `topk` keeps. Distances are in LEB128: 7 bits
// per byte, lowest first, the highest bit set if more bytes follow.
//
//   Lengths, Offsets, Distances          from positions to bytes
//   Ends, Offsets, Steps                 from bytes to steps; a step is a distance + 1
//   Sums, Offsets, Places                from steps to a bitmap
#pragma once

#include "compression/device/topk_kernels.h"

namespace cleave::device {

// Number of consecutive elements of a tile that one thread processes.
inline constexpr std::uint32_t kEach = kTileElements / kThreads;

CLEAVE_DEVICE inline std::uint32_t distanceBefore(const std::uint32_t* places, std::uint32_t k) {
  return k == 0 ? places[0] : places[k] - places[k - 1] - 1;
}
CLEAVE_DEVICE inline std::uint32_t distanceBytes(std::uint32_t distance) {
  std::uint32_t bytes = 1;
  for (; distance >= 0x80; distance >>= 7) ++bytes;
  return bytes;
}

// One count per thread; the tile's count is their sum.
struct ThreadCounts {
  std::uint32_t counts[kThreads];

  CLEAVE_DEVICE void writeSum(Place at, TileCount* tiles) const {
    if (at.thread == 0) tiles[at.block] = {sumBefore(counts, kThreads), 0};
  }
};

struct LengthsKernel {
  static constexpr int kPhases = 2;
  using Shared = ThreadCounts;
  struct Thread {};

  const std::uint32_t* places;  // ascending
  std::uint32_t count;
  TileCount* tiles;  // `above` receives the size of the tile's distances in bytes

  std::uint32_t blocks() const { return tilesOf(count); }

  template <int kPhase>
  CLEAVE_DEVICE void run(Place at, Shared& shared, Thread&) const {
    if constexpr (kPhase == 0) shared.counts[at.thread] = bytesOf(at);
    if constexpr (kPhase == 1) shared.writeSum(at, tiles);
  }

  CLEAVE_DEVICE std::uint32_t bytesOf(Place at) const {
    const std::uint32_t first = at.block * kTileElements + at.thread * kEach;
    std::uint32_t bytes = 0;
    for (std::uint32_t k = first; k < lesser(first + kEach, count); ++k)
      bytes += distanceBytes(distanceBefore(places, k));
    return bytes;
  }
};

struct DistancesKernel {
  static constexpr int kPhases = 2;
  using Shared = ThreadCounts;
  struct Thread {};

  LengthsKernel lengths;  // its tiles now hold the counts before each tile
  std::byte* out;
  std::uint32_t room;  // capacity of `out`; bytes beyond are not written

  std::uint32_t blocks() const { return lengths.blocks(); }

  template <int kPhase>
  CLEAVE_DEVICE void run(Place at, Shared& shared, Thread&) const {
    if constexpr (kPhase == 0) shared.counts[at.thread] = lengths.bytesOf(at);
    if constexpr (kPhase == 1)
      write(at, lengths.tiles[at.block].above + sumBefore(shared.counts, at.thread));
  }

  CLEAVE_DEVICE void write(Place at, std::uint32_t to) const {
    const std::uint32_t first = at.block * kTileElements + at.thread * kEach;
    for (std::uint32_t k = first; k < lesser(first + kEach, lengths.count); ++k) {
      std::uint32_t distance = distanceBefore(lengths.places, k);
      for (; distance >= 0x80; distance >>= 7) put(to++, distance | 0x80);
      put(to++, distance);
    }
  }
  CLEAVE_DEVICE void put(std::uint32_t to, std::uint32_t byte) const {
    if (to < room) out[to] = static_cast<std::byte>(byte);
  }
};

// ---- Decoding: the bytes are untrusted input ----

// Counts the bytes that end a distance.
struct EndsKernel {
  static constexpr int kPhases = 2;
  using Shared = ThreadCounts;
  struct Thread {};

  const std::uint8_t* bytes;
  std::uint32_t count;
  TileCount* tiles;  // `above` receives the number of ends in the tile

  std::uint32_t blocks() const { return tilesOf(count); }

  template <int kPhase>
  CLEAVE_DEVICE void run(Place at, Shared& shared, Thread&) const {
    if constexpr (kPhase == 0) shared.counts[at.thread] = endsOf(at);
    if constexpr (kPhase == 1) shared.writeSum(at, tiles);
  }

  CLEAVE_DEVICE std::uint32_t endsOf(Place at) const {
    const std::uint32_t first = at.block * kTileElements + at.thread * kEach;
    std::uint32_t ends = 0;
    for (std::uint32_t b = first; b < lesser(first + kEach, count); ++b)
      ends += bytes[b] < 0x80 ? 1 : 0;
    return ends;
  }
};

struct StepsKernel {
  static constexpr int kPhases = 2;
  static constexpr std::uint32_t kMaxBytes = 9;  // maximum bytes of a distance
  using Shared = ThreadCounts;
  struct Thread {};

  EndsKernel ends;       // its tiles now hold the counts before each tile
  std::uint32_t* steps;  // for the first `room` distances
  std::uint32_t room;
  std::uint32_t elements;  // number of elements of the tensor
  std::uint32_t* fault;    // set to 1 if a distance is too long or too large

  std::uint32_t blocks() const { return ends.blocks(); }

  template <int kPhase>
  CLEAVE_DEVICE void run(Place at, Shared& shared, Thread&) const {
    if constexpr (kPhase == 0) shared.counts[at.thread] = ends.endsOf(at);
    if constexpr (kPhase == 1)
      write(at, ends.tiles[at.block].above + sumBefore(shared.counts, at.thread));
  }

  CLEAVE_DEVICE void write(Place at, std::uint32_t to) const {
    const std::uint32_t first = at.block * kTileElements + at.thread * kEach;
    for (std::uint32_t b = first; b < lesser(first + kEach, ends.count); ++b) {
      if (ends.bytes[b] >= 0x80) continue;
      if (to < room) steps[to] = stepAt(b);
      ++to;
    }
  }

  // Returns the step of the distance that ends with byte b.
  CLEAVE_DEVICE std::uint32_t stepAt(std::uint32_t b) const {
    std::uint64_t distance = ends.bytes[b];
    std::uint32_t length = 1;
    for (; b > 0 && ends.bytes[b - 1] >= 0x80 && length <= kMaxBytes; --b, ++length)
      distance = distance << 7 | (ends.bytes[b - 1] & 0x7f);
    if (length <= kMaxBytes && distance < elements) return static_cast<std::uint32_t>(distance) + 1;
    raise(*fault, 1);
    return 1;
  }
};

struct SumsKernel {
  static constexpr int kPhases = 2;
  using Shared = ThreadCounts;
  struct Thread {};

  const std::uint32_t* steps;
  const std::uint32_t* ends;  // number of steps, of which at most `count` are used
  std::uint32_t count;
  TileCount* tiles;  // `above` receives the sum of the tile's steps

  std::uint32_t blocks() const { return tilesOf(count); }

  template <int kPhase>
  CLEAVE_DEVICE void run(Place at, Shared& shared, Thread&) const {
    if constexpr (kPhase == 0) shared.counts[at.thread] = sumOf(at);
    if constexpr (kPhase == 1) shared.writeSum(at, tiles);
  }

  CLEAVE_DEVICE std::uint32_t endOf(std::uint32_t first) const {
    return lesser(first + kEach, lesser(count, *ends));
  }
  CLEAVE_DEVICE std::uint32_t sumOf(Place at) const {
    const std::uint32_t first = at.block * kTileElements + at.thread * kEach;
    std::uint32_t sum = 0;
    for (std::uint32_t k = first; k < endOf(first); ++k) sum = boundedSum(sum, steps[k]);
    return sum;
  }
};

struct PlacesKernel {
  static constexpr int kPhases = 2;
  using Shared = ThreadCounts;
  struct Thread {};

  SumsKernel sums;        // its tiles now hold the counts before each tile
  std::uint32_t* bitmap;  // must be zeros
  std::uint32_t elements;
  std::uint32_t* fault;  // set to 1 if a position is beyond the elements

  std::uint32_t blocks() const { return sums.blocks(); }

  template <int kPhase>
  CLEAVE_DEVICE void run(Place at, Shared& shared, Thread&) const {
    if constexpr (kPhase == 0) shared.counts[at.thread] = sums.sumOf(at);
    if constexpr (kPhase == 1)
      mark(at, boundedSum(sums.tiles[at.block].above, sumBefore(shared.counts, at.thread)));
  }

  CLEAVE_DEVICE void mark(Place at, std::uint32_t next) const {
    const std::uint32_t first = at.block * kTileElements + at.thread * kEach;
    for (std::uint32_t k = first; k < sums.endOf(first); ++k) {
      next = boundedSum(next, sums.steps[k]);
      const std::uint32_t place = next - 1;
      if (place >= elements) {
        raise(*fault, 1);
        return;
      }
      addTo(bitmap[place / 32], 1u << (place % 32));  // positions ascend: the bit is not yet set
    }
  }
};

}  // namespace cleave::device
