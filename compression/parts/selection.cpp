#include "compression/parts/selection.h"

#include <algorithm>
#include <cassert>

#include "compression/parts/bins.h"

namespace cleave {
namespace {

constexpr int kBinShift = 32 - 11;
static_assert(kBins == 1 << 11);
constexpr std::size_t kFewValues = 1 << 14;
constexpr std::size_t kFewRanks = 8;

std::uint32_t binOf(float value) { return orderKey(value) >> kBinShift; }

// A bin that contains a requested rank.
struct Wanted {
  std::uint64_t firstRank = 0;  // rank of the bin's first value
  std::uint64_t count = 0;
  float frequent = 0;            // a frequent value, which is counted instead of collected
  std::vector<float> collected;  // the other values
};

// Selects from first…last - 1, with ranks counted from 0.
void selectRanks(std::vector<float>::iterator first, std::vector<float>::iterator last,
                 std::span<const std::size_t> ranks, float* out) {
  if (ranks.size() > kFewRanks) {
    std::sort(first, last);
    for (const std::size_t rank : ranks) *out++ = first[static_cast<std::ptrdiff_t>(rank)];
    return;
  }
  auto from = first;
  for (const std::size_t rank : ranks) {
    const auto place = first + static_cast<std::ptrdiff_t>(rank);
    if (place >= from) std::nth_element(from, place, last);
    *out++ = *place;
    from = place + 1;
  }
}

// Finds the values of these ranks. Ranks are counted within the bin.
void selectInBin(Wanted& bin, std::vector<std::size_t> ranks, float* out) {
  const auto middle = std::partition(bin.collected.begin(), bin.collected.end(),
                                     [&](float x) { return x < bin.frequent; });
  const auto below = static_cast<std::size_t>(middle - bin.collected.begin());
  const std::size_t equal = bin.count - bin.collected.size();
  const auto firstEqual = std::lower_bound(ranks.begin(), ranks.end(), below);
  const auto firstAbove = std::lower_bound(firstEqual, ranks.end(), below + equal);
  for (auto rank = firstAbove; rank != ranks.end(); ++rank) *rank -= below + equal;
  selectRanks(bin.collected.begin(), middle, {ranks.begin(), firstEqual}, out);
  std::fill(out + (firstEqual - ranks.begin()), out + (firstAbove - ranks.begin()), bin.frequent);
  selectRanks(middle, bin.collected.end(), {firstAbove, ranks.end()},
              out + (firstAbove - ranks.begin()));
}

// Returns a probably frequent value for each bin, found among a few evenly spaced elements of the
// tensor.
std::vector<std::uint32_t> frequentKeys(const FloatReader& values) {
  constexpr std::size_t kLooks = 512;
  std::vector<std::uint32_t> keys(kBins);
  for (std::size_t bin = 0; bin < kBins; ++bin) {
    keys[bin] = static_cast<std::uint32_t>(bin) << kBinShift;
  }
  for (std::size_t look = 0; look < kLooks; ++look) {
    const float value = values.at(values.size() / kLooks * look + look % 7);
    keys[binOf(value)] = orderKey(value);
  }
  return keys;
}

float valueOfKey(std::uint32_t key) {
  return std::bit_cast<float>(key & 0x80000000 ? key ^ 0x80000000 : ~key);
}

// Collects the values of the flagged bins, except the frequent ones; at most `maxFound`, in the
// tensor's order.
std::vector<float> collect(const FloatReader& values, const std::vector<std::uint32_t>& frequent,
                           const std::vector<std::uint8_t>& flags, std::size_t maxFound) {
  // Writes every element, but only collected ones advance the end.
  std::vector<float> found(maxFound + 1);
  std::size_t kept = 0;
  alignas(64) std::array<std::uint32_t, kStripElements> keys;
  forEachStrip(values, [&](std::size_t, std::size_t count, const float* strip) {
    for (std::size_t j = 0; j < count; ++j) keys[j] = orderKey(strip[j]);
    for (std::size_t j = 0; j < count; ++j) {
      const std::uint32_t bin = keys[j] >> kBinShift;
      found[kept] = strip[j];
      kept += static_cast<std::size_t>(flags[bin] & (keys[j] != frequent[bin]));
    }
  });
  assert(kept <= maxFound);
  found.resize(kept);
  return found;
}

}  // namespace

std::vector<float> valuesAtRanks(const CodecContext& context, const FloatReader& values,
                                 std::span<const std::size_t> ranks) {
  std::vector<float> result(ranks.size());
  if (ranks.empty()) return result;
  assert(std::ranges::is_sorted(ranks) && ranks.back() < values.size());
  if (values.size() <= kFewValues) {
    std::vector<float> all(values.size());
    const float* const read = values.read(0, values.size(), all.data());
    if (read != all.data()) std::copy(read, read + values.size(), all.begin());
    for (float& value : all) value += 0.0f;
    selectRanks(all.begin(), all.end(), ranks, result.data());
    return result;
  }

  const BinCounts counts = countBins(context, values, [](float value) { return binOf(value); });
  const std::vector<std::uint32_t> frequent = frequentKeys(values);
  std::vector<std::uint8_t> flags(kBins);
  std::vector<Wanted> wanted(kBins);
  std::vector<std::vector<std::size_t>> ranksOfBin(kBins);
  std::size_t wantedCount = 0;
  std::uint64_t rank = 0;
  std::size_t next = 0;
  for (std::size_t bin = 0; bin < kBins; rank += counts[bin++]) {
    for (; next < ranks.size() && ranks[next] < rank + counts[bin]; ++next) {
      ranksOfBin[bin].push_back(ranks[next] - rank);
    }
    if (ranksOfBin[bin].empty()) continue;
    flags[bin] = 1;
    wanted[bin] = {rank, counts[bin], valueOfKey(frequent[bin]), {}};
    wantedCount += counts[bin];
  }
  for (const float value : collect(values, frequent, flags, wantedCount)) {
    wanted[binOf(value)].collected.push_back(value + 0.0f);
  }
  float* out = result.data();
  for (std::size_t bin = 0; bin < kBins; ++bin) {
    if (!flags[bin]) continue;
    selectInBin(wanted[bin], ranksOfBin[bin], out);
    out += ranksOfBin[bin].size();
    context.checkpoint();
  }
  return result;
}

}  // namespace cleave
