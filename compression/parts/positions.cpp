#include "compression/parts/positions.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <functional>

#include "compression/kernels/magnitudes.h"
#include "compression/parts/bins.h"

namespace cleave {
namespace {

constexpr int kMagnitudeBinShift = 31 - 11;
static_assert(kBins == 1 << 11);
constexpr std::uint32_t kFirstNonFiniteBin = 0x7f800000 >> kMagnitudeBinShift;
constexpr std::size_t kStripWords = kStripElements / 64;

struct Threshold {
  std::uint32_t magnitude = 0;  // magnitude of the last kept element
  std::size_t ties = 0;         // number of kept elements of this magnitude
};

// Returns the magnitudes in one bin. Requires that the bin has only finite values.
std::vector<std::uint32_t> collect(const FloatReader& values, std::uint32_t bin,
                                   std::size_t maxFound) {
  std::vector<std::uint32_t> found;
  found.reserve(maxFound);
  std::array<std::uint64_t, kStripWords> atLeast;
  std::array<std::uint64_t, kStripWords> above;
  forEachStrip(values, [&](std::size_t, std::size_t count, const float* strip) {
    flagMagnitudes(strip, count, bin << kMagnitudeBinShift, atLeast.data());
    flagMagnitudes(strip, count, (bin + 1) << kMagnitudeBinShift, above.data());
    for (std::size_t w = 0; w < (count + 63) / 64; ++w) {
      for (std::uint64_t word = atLeast[w] & ~above[w]; word != 0; word &= word - 1) {
        const auto bit = static_cast<std::size_t>(std::countr_zero(word));
        found.push_back(magnitudeKey(strip[w * 64 + bit]));
      }
    }
  });
  return found;
}

std::optional<Threshold> thresholdOf(const CodecContext& context, const FloatReader& values,
                                     std::size_t count) {
  const BinCounts counts = countBins(
      context, values, [](float value) { return magnitudeKey(value) >> kMagnitudeBinShift; });
  if (std::any_of(counts.begin() + kFirstNonFiniteBin, counts.end(),
                  [](std::uint64_t n) { return n > 0; })) {
    return std::nullopt;
  }
  std::uint32_t bin = kBins - 1;
  std::size_t missing = count;  // elements still to be kept, from this bin downwards
  for (; counts[bin] < missing; --bin) missing -= counts[bin];
  std::vector<std::uint32_t> magnitudes = collect(values, bin, counts[bin]);
  const auto place = magnitudes.begin() + static_cast<std::ptrdiff_t>(missing - 1);
  std::nth_element(magnitudes.begin(), place, magnitudes.end(), std::greater<>());
  const std::uint32_t magnitude = *place;
  const auto above = std::count_if(magnitudes.begin(), magnitudes.end(),
                                   [&](std::uint32_t m) { return m > magnitude; });
  return Threshold{magnitude, missing - static_cast<std::size_t>(above)};
}

// Returns the lowest `count` set bits.
std::uint64_t lowestBits(std::uint64_t word, std::size_t count) {
  std::uint64_t rest = word;
  for (; count > 0; --count) rest &= rest - 1;
  return word & ~rest;
}

}  // namespace

std::optional<Positions> largest(const CodecContext& context, const FloatReader& values,
                                 std::size_t count) {
  const std::optional<Threshold> threshold = thresholdOf(context, values, count);
  if (!threshold) return std::nullopt;
  Positions positions(values.size());
  positions.kept = count;
  std::size_t ties = threshold->ties;
  forEachStrip(values, [&](std::size_t start, std::size_t n, const float* strip) {
    std::uint64_t* const words = positions.words.data() + start / 64;
    flagMagnitudes(strip, n, threshold->magnitude + 1, words);
    if (ties == 0) return;
    std::array<std::uint64_t, kStripWords> atLeast;
    flagMagnitudes(strip, n, threshold->magnitude, atLeast.data());
    for (std::size_t w = 0; w < (n + 63) / 64; ++w) {
      const std::uint64_t equal = atLeast[w] & ~words[w];
      const auto found = static_cast<std::size_t>(std::popcount(equal));
      words[w] |= found <= ties ? equal : lowestBits(equal, ties);
      ties -= std::min(found, ties);
    }
  });
  assert(ties == 0);
  return positions;
}

std::size_t writeDistances(const Positions& positions, std::span<std::byte> out) {
  std::size_t used = 0;
  std::size_t next = 0;  // the position that would have distance 0
  for (std::size_t w = 0; w < positions.words.size(); ++w) {
    for (std::uint64_t word = positions.words[w]; word != 0; word &= word - 1) {
      const std::size_t j = w * 64 + static_cast<std::size_t>(std::countr_zero(word));
      std::size_t distance = j - next;
      for (; distance >= 0x80 && used < out.size(); distance >>= 7) {
        out[used++] = static_cast<std::byte>(distance | 0x80);
      }
      if (used == out.size()) return 0;
      out[used++] = static_cast<std::byte>(distance);
      next = j + 1;
    }
  }
  return used;
}

std::optional<Positions> readDistances(std::span<const std::byte> bytes, std::size_t elements,
                                       std::size_t kept) {
  Positions positions(elements);
  positions.kept = kept;
  std::size_t used = 0;
  std::size_t next = 0;
  for (std::size_t k = 0; k < kept; ++k) {
    std::size_t distance = 0;
    int shift = 0;
    bool more = true;
    while (more) {
      if (used == bytes.size() || shift > 56) return std::nullopt;
      const auto byte = std::to_integer<std::size_t>(bytes[used++]);
      distance |= (byte & 0x7f) << shift;
      shift += 7;
      more = (byte & 0x80) != 0;
    }
    if (next >= elements || distance >= elements - next) return std::nullopt;
    const std::size_t j = next + distance;
    positions.words[j / 64] |= std::uint64_t{1} << (j % 64);
    next = j + 1;
  }
  if (used != bytes.size()) return std::nullopt;
  return positions;
}

void writeBitmap(const Positions& positions, std::byte* out) {
  std::memcpy(out, positions.words.data(), positions.bitmapBytes());
}

std::optional<Positions> readBitmap(const std::byte* bytes, std::size_t elements,
                                    std::size_t kept) {
  Positions positions(elements);
  positions.kept = kept;
  std::memcpy(positions.words.data(), bytes, positions.bitmapBytes());
  std::size_t set = 0;
  for (const std::uint64_t word : positions.words) {
    set += static_cast<std::size_t>(std::popcount(word));
  }
  const bool beyond = elements % 64 != 0 && positions.words.back() >> (elements % 64) != 0;
  if (set != kept || beyond) return std::nullopt;
  return positions;
}

}  // namespace cleave
