// Histograms over the top bits of 32-bit keys that sort like floats. They are the first pass of
// selection without sorting.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "compression/parts/strips.h"

namespace cleave {

inline constexpr std::size_t kBins = 2048;

// Returns a key that sorts like the floats, with -0 as +0: all bits of negative numbers are
// inverted, and only the sign bit of others.
inline std::uint32_t orderKey(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value + 0.0f);  // -0 + 0 = +0
  return bits ^ (static_cast<std::uint32_t>(static_cast<std::int32_t>(bits) >> 31) | 0x80000000);
}
// Returns a key that sorts like the magnitudes.
inline std::uint32_t magnitudeKey(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffff;
}

using BinCounts = std::array<std::uint64_t, kBins>;

// Counts the elements per bin; binOf(value) must be below kBins.
template <typename BinOf>
BinCounts countBins(const CodecContext& context, const FloatReader& values, const BinOf& binOf) {
  // Counters are interleaved, because neighbours mostly fall into the same bin, and incrementing a
  // single counter would have to wait for the previous increment.
  constexpr std::size_t kTurns = 4;
  constexpr std::size_t kFlush = std::size_t{1} << 18;  // in strips; no counter overflows before
  std::array<BinCounts, 2> counts{};
  const auto countPart = [&](std::size_t part, std::size_t first, std::size_t elements) {
    std::vector<std::uint32_t> turns(kTurns * kBins);
    const auto flush = [&] {
      for (std::size_t k = 0; k < turns.size(); ++k) counts[part][k % kBins] += turns[k];
      std::fill(turns.begin(), turns.end(), 0);
    };
    alignas(64) std::array<std::uint16_t, kStripElements> bins;
    std::size_t strips = 0;
    forEachStrip(values, first, elements, [&](std::size_t, std::size_t count, const float* strip) {
      for (std::size_t j = 0; j < count; ++j) {
        bins[j] = static_cast<std::uint16_t>(binOf(strip[j]));
      }
      std::uint32_t* const turn = turns.data();
      std::size_t j = 0;
      for (; j + kTurns <= count; j += kTurns) {
        ++turn[0 * kBins + bins[j]];
        ++turn[1 * kBins + bins[j + 1]];
        ++turn[2 * kBins + bins[j + 2]];
        ++turn[3 * kBins + bins[j + 3]];
      }
      for (; j < count; ++j) ++turn[bins[j]];
      if (++strips % kFlush == 0) flush();
    });
    flush();
  };
  forEachPart(context, values.size(), countPart);
  for (std::size_t bin = 0; bin < kBins; ++bin) counts[0][bin] += counts[1][bin];
  return counts[0];
}

}  // namespace cleave
