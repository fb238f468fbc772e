#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/kernels/magnitudes.cpp"
#include <hwy/foreach_target.h>
// Must follow foreach_target.h.
#include <hwy/highway.h>

#include <cstring>

#include "compression/kernels/magnitudes.h"

HWY_BEFORE_NAMESPACE();
namespace cleave {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kWordBits = 64;

// Requires kWordBits readable values.
HWY_INLINE std::uint64_t flagWord(const std::int32_t* HWY_RESTRICT bits, std::int32_t threshold) {
  const hn::CappedTag<std::int32_t, kWordBits> d;
  const auto magnitudeBits = hn::Set(d, 0x7fffffff);
  const auto below = hn::Set(d, threshold - 1);
  std::uint64_t word = 0;
  for (std::size_t j = 0; j < kWordBits; j += hn::Lanes(d)) {
    const auto magnitude = hn::And(hn::LoadU(d, bits + j), magnitudeBits);
    std::uint8_t flags[8] = {};
    hn::StoreMaskBits(d, hn::Gt(magnitude, below), flags);
    std::uint64_t some = 0;
    std::memcpy(&some, flags, sizeof some);
    word |= some << j;
  }
  return word;
}

void flagMagnitudesOfBlock(const float* values, std::size_t count, std::uint32_t threshold,
                           std::uint64_t* words) {
  const auto* bits = reinterpret_cast<const std::int32_t*>(values);
  const auto limit = static_cast<std::int32_t>(threshold);
  std::size_t j = 0;
  for (; j + kWordBits <= count; j += kWordBits) *words++ = flagWord(bits + j, limit);
  if (j == count) return;
  std::int32_t rest[kWordBits] = {};
  std::memcpy(rest, bits + j, (count - j) * sizeof(float));
  *words = flagWord(rest, limit) & ((std::uint64_t{1} << (count - j)) - 1);
}

}  // namespace HWY_NAMESPACE
}  // namespace cleave
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cleave {
namespace {

HWY_EXPORT(flagMagnitudesOfBlock);

}  // namespace

void flagMagnitudes(const float* values, std::size_t count, std::uint32_t threshold,
                    std::uint64_t* words) {
  HWY_DYNAMIC_DISPATCH(flagMagnitudesOfBlock)(values, count, threshold, words);
}

}  // namespace cleave
#endif  // HWY_ONCE
