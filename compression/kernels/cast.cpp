// Conversions between fp32 and the 16-bit formats, and the range of fp32 values. The hardware's own
// conversions treat NaN differently between instruction sets, so these use integer arithmetic;
// plain.cpp explains each line.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/kernels/cast.cpp"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h.
#include <cstring>

#include "compression/kernels/kernels.h"
#include "compression/kernels/plain.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cleave::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

Range findRange(const float* values, std::size_t count) { return plain::rangeOf(values, count); }
void widenHalf(const std::byte* in, std::size_t count, float* out) {
  plain::floatFromHalf(in, count, out);
}
void narrowHalf(const float* in, std::size_t count, std::byte* out) {
  plain::halfFromFloat(in, count, out);
}
void widenBf16(const std::byte* in, std::size_t count, float* out) {
  plain::floatFromBf16(in, count, out);
}
void narrowBf16(const float* in, std::size_t count, std::byte* out) {
  plain::bf16FromFloat(in, count, out);
}

#else

namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, 16>;
constexpr Floats kFloats;
using Words = hn::RebindToUnsigned<Floats>;
using Shorts = hn::Rebind<std::uint16_t, Words>;
using FloatVector = hn::VFromD<Floats>;
using WordVector = hn::VFromD<Words>;
constexpr std::size_t kLanes = hn::MaxLanes(kFloats);
constexpr Words kWords;
constexpr Shorts kShorts;

HWY_INLINE WordVector word(std::uint32_t value) { return hn::Set(kWords, value); }

struct Half {
  static HWY_INLINE WordVector narrow(WordVector bits) {
    const auto magnitude = hn::And(bits, word(0x7fffffff));
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), word(1));
    const auto normal = hn::ShiftRight<13>(
        hn::Add(hn::Add(hn::Sub(magnitude, word((127 - 15) << 23)), word(0xfff)), odd));
    const auto half = hn::Set(kFloats, 0.5f);
    const auto subnormal =
        hn::Sub(hn::BitCast(kWords, hn::Add(hn::BitCast(kFloats, magnitude), half)),
                hn::BitCast(kWords, half));
    const auto nan = hn::Or(word(0x7e00), hn::And(hn::ShiftRight<13>(magnitude), word(0x3ff)));
    auto result = hn::IfThenElse(hn::Lt(magnitude, word((127 - 14) << 23)), subnormal, normal);
    result = hn::IfThenElse(hn::Lt(magnitude, word((127 + 16) << 23)), result, word(0x7c00));
    result = hn::IfThenElse(hn::Gt(magnitude, word(0x7f800000)), nan, result);
    return hn::Or(result, hn::ShiftRight<16>(hn::And(bits, word(0x80000000))));
  }
  static HWY_INLINE WordVector widen(WordVector half) {
    const auto magnitude = hn::ShiftLeft<13>(hn::And(half, word(0x7fff)));
    const auto exponent = hn::And(magnitude, word(0x7c00 << 13));
    const auto normal = hn::Add(magnitude, word((127 - 15) << 23));
    const auto special = hn::Or(magnitude, word(0x7f800000));
    const auto hidden = word((127 - 14) << 23);
    const auto subnormal = hn::BitCast(
        kWords,
        hn::Sub(hn::BitCast(kFloats, hn::Add(magnitude, hidden)), hn::BitCast(kFloats, hidden)));
    auto result = hn::IfThenElse(hn::Eq(exponent, hn::Zero(kWords)), subnormal, normal);
    result = hn::IfThenElse(hn::Eq(exponent, word(0x7c00 << 13)), special, result);
    return hn::Or(result, hn::ShiftLeft<16>(hn::And(half, word(0x8000))));
  }
};

struct Bf16 {
  static HWY_INLINE WordVector narrow(WordVector bits) {
    const auto upper = hn::ShiftRight<16>(bits);
    const auto rounded =
        hn::ShiftRight<16>(hn::Add(hn::Add(bits, word(0x7fff)), hn::And(upper, word(1))));
    const auto isNan = hn::Gt(hn::And(bits, word(0x7fffffff)), word(0x7f800000));
    return hn::IfThenElse(isNan, hn::Or(upper, word(0x40)), rounded);
  }
  static HWY_INLINE WordVector widen(WordVector value) { return hn::ShiftLeft<16>(value); }
};

template <class Format>
HWY_INLINE void widenVector(const std::uint16_t* in, float* out) {
  const auto wide = Format::widen(hn::PromoteTo(kWords, hn::LoadU(kShorts, in)));
  hn::StoreU(hn::BitCast(kFloats, wide), kFloats, out);
}

template <class Format>
HWY_INLINE void narrowVector(const float* in, std::uint16_t* out) {
  const auto narrow = Format::narrow(hn::BitCast(kWords, hn::LoadU(kFloats, in)));
  hn::StoreU(hn::TruncateTo(kShorts, narrow), kShorts, out);
}

template <class Format>
HWY_INLINE void widenAll(const std::byte* bytes, std::size_t count, float* out) {
  const auto* const in = reinterpret_cast<const std::uint16_t*>(bytes);
  std::size_t j = 0;
  for (; j + kLanes <= count; j += kLanes) widenVector<Format>(in + j, out + j);
  if (j == count) return;
  std::uint16_t padded[kLanes] = {};
  float values[kLanes];
  std::memcpy(padded, in + j, (count - j) * sizeof *in);
  widenVector<Format>(padded, values);
  std::memcpy(out + j, values, (count - j) * sizeof *out);
}

template <class Format>
HWY_INLINE void narrowAll(const float* in, std::size_t count, std::byte* bytes) {
  auto* const out = reinterpret_cast<std::uint16_t*>(bytes);
  std::size_t j = 0;
  for (; j + kLanes <= count; j += kLanes) narrowVector<Format>(in + j, out + j);
  if (j == count) return;
  float padded[kLanes] = {};
  std::uint16_t values[kLanes];
  std::memcpy(padded, in + j, (count - j) * sizeof *in);
  narrowVector<Format>(padded, values);
  std::memcpy(out + j, values, (count - j) * sizeof *out);
}

}  // namespace

// Four independent chains, so that no operation waits for the previous one.
Range findRange(const float* values, std::size_t count) {
  constexpr std::size_t kChains = 4;
  if (count < kChains * kLanes) return plain::rangeOf(values, count);
  const Floats d = kFloats;
  const auto begin = hn::LoadU(d, values);
  auto min0 = begin, min1 = begin, min2 = begin, min3 = begin;
  auto max0 = begin, max1 = begin, max2 = begin, max3 = begin;
  auto broken0 = hn::Sub(begin, begin), broken1 = broken0;  // +0 if all values so far are finite
  const auto take = [&](const float* from) HWY_ATTR {
    const auto x0 = hn::LoadU(d, from);
    const auto x1 = hn::LoadU(d, from + kLanes);
    const auto x2 = hn::LoadU(d, from + 2 * kLanes);
    const auto x3 = hn::LoadU(d, from + 3 * kLanes);
    min0 = hn::Min(min0, x0);
    min1 = hn::Min(min1, x1);
    min2 = hn::Min(min2, x2);
    min3 = hn::Min(min3, x3);
    max0 = hn::Max(max0, x0);
    max1 = hn::Max(max1, x1);
    max2 = hn::Max(max2, x2);
    max3 = hn::Max(max3, x3);
    broken0 = hn::Or(broken0, hn::Or(hn::Sub(x0, x0), hn::Sub(x1, x1)));
    broken1 = hn::Or(broken1, hn::Or(hn::Sub(x2, x2), hn::Sub(x3, x3)));
  };
  std::size_t j = 0;
  for (; j + kChains * kLanes <= count; j += kChains * kLanes) take(values + j);
  if (j < count) take(values + count - kChains * kLanes);  // some of these values are read twice
  const auto min = hn::Min(hn::Min(min0, min1), hn::Min(min2, min3));
  const auto max = hn::Max(hn::Max(max0, max1), hn::Max(max2, max3));
  const auto broken = hn::BitCast(kWords, hn::Or(broken0, broken1));
  return {hn::GetLane(hn::MinOfLanes(d, min)) + 0.0f, hn::GetLane(hn::MaxOfLanes(d, max)) + 0.0f,
          hn::AllTrue(kWords, hn::Eq(broken, hn::Zero(kWords)))};
}

void widenHalf(const std::byte* in, std::size_t count, float* out) {
  widenAll<Half>(in, count, out);
}
void narrowHalf(const float* in, std::size_t count, std::byte* out) {
  narrowAll<Half>(in, count, out);
}
void widenBf16(const std::byte* in, std::size_t count, float* out) {
  widenAll<Bf16>(in, count, out);
}
void narrowBf16(const float* in, std::size_t count, std::byte* out) {
  narrowAll<Bf16>(in, count, out);
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace cleave::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cleave::kernels {

HWY_EXPORT(findRange);
HWY_EXPORT(widenHalf);
HWY_EXPORT(narrowHalf);
HWY_EXPORT(widenBf16);
HWY_EXPORT(narrowBf16);

Range rangeOf(const float* values, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(findRange)(values, count);
}
void floatFromHalf(const std::byte* in, std::size_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(widenHalf)(in, count, out);
}
void halfFromFloat(const float* in, std::size_t count, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(narrowHalf)(in, count, out);
}
void floatFromBf16(const std::byte* in, std::size_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(widenBf16)(in, count, out);
}
void bf16FromFloat(const float* in, std::size_t count, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(narrowBf16)(in, count, out);
}

}  // namespace cleave::kernels
#endif  // HWY_ONCE
