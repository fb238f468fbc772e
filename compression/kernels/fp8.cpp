// 8-bit floats with a scale. plain.cpp explains each line.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/kernels/fp8.cpp"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h.
#include <cstring>

#include "compression/kernels/kernels.h"
#include "compression/kernels/plain.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cleave::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

void narrow(const float* in, std::size_t count, Fp8 format, int exponent, std::byte* out) {
  plain::fp8FromFloat(in, count, format, exponent, out);
}
bool widen(const std::byte* in, std::size_t count, Fp8 format, int exponent, float limit,
           float* out) {
  return plain::floatFromFp8(in, count, format, exponent, limit, out);
}

#else

namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, 16>;
using Words = hn::RebindToUnsigned<Floats>;
using Bytes = hn::Rebind<std::uint8_t, Words>;
constexpr Floats kFloats;
constexpr Words kWords;
constexpr Bytes kBytes;
constexpr std::size_t kLanes = hn::MaxLanes(kFloats);

HWY_INLINE hn::VFromD<Words> word(std::uint32_t value) { return hn::Set(kWords, value); }

// Calls step(in, out) for each vector; the last one goes through buffers.
template <typename In, typename Out, typename Step>
HWY_INLINE void forEachVector(const In* in, std::size_t count, Out* out, Step step) {
  std::size_t j = 0;
  for (; j + kLanes <= count; j += kLanes) step(in + j, out + j);
  if (j == count) return;
  In padded[kLanes] = {};
  Out results[kLanes];
  std::memcpy(padded, in + j, (count - j) * sizeof(In));
  step(padded, results);
  std::memcpy(out + j, results, (count - j) * sizeof(Out));
}

template <int kMantissa, int kBias>
HWY_INLINE void narrowAll(const float* in, std::size_t count, int exponent, std::byte* out) {
  constexpr int kShift = 23 - kMantissa;
  const auto scale = hn::Set(kFloats, plain::powerOfTwo(-exponent));
  const auto hidden = hn::Set(kFloats, plain::powerOfTwo(1 - kBias - kMantissa + 23));
  const auto step = [&](const float* from, std::uint8_t* to) HWY_ATTR {
    const auto bits = hn::BitCast(kWords, hn::Mul(hn::LoadU(kFloats, from), scale));
    const auto magnitude = hn::And(bits, word(0x7fffffff));
    const auto odd = hn::And(hn::ShiftRight<kShift>(magnitude), word(1));
    const auto half = word((1u << (kShift - 1)) - 1);
    const auto normal = hn::ShiftRight<kShift>(
        hn::Add(hn::Add(hn::Sub(magnitude, word((127u - kBias) << 23)), half), odd));
    const auto subnormal =
        hn::Sub(hn::BitCast(kWords, hn::Add(hn::BitCast(kFloats, magnitude), hidden)),
                hn::BitCast(kWords, hidden));
    const auto isSmall = hn::Lt(magnitude, word((128u - kBias) << 23));
    const auto sign = hn::ShiftRight<24>(hn::And(bits, word(0x80000000)));
    const auto code = hn::Or(hn::IfThenElse(isSmall, subnormal, normal), sign);
    hn::StoreU(hn::TruncateTo(kBytes, code), kBytes, to);
  };
  forEachVector(in, count, reinterpret_cast<std::uint8_t*>(out), step);
}

template <int kMantissa, int kBias>
HWY_INLINE bool widenAll(const std::byte* in, std::size_t count, std::uint32_t maxCode,
                         int exponent, float limit, float* out) {
  constexpr int kShift = 23 - kMantissa;
  const auto scale = hn::Set(kFloats, plain::powerOfTwo(exponent));
  const auto max = hn::Set(kFloats, limit);
  const auto min = hn::Set(kFloats, -limit);
  auto worst = hn::Zero(kWords);
  const auto step = [&](const std::uint8_t* from, float* to) HWY_ATTR {
    const auto code = hn::PromoteTo(kWords, hn::LoadU(kBytes, from));
    const auto magnitude = hn::And(code, word(0x7f));
    worst = hn::Max(worst, magnitude);
    const auto shifted = hn::ShiftLeft<kShift>(magnitude);
    const auto normal = hn::Add(shifted, word((127u - kBias) << 23));
    const auto hidden = word((128u - kBias) << 23);
    const auto subnormal = hn::BitCast(
        kWords,
        hn::Sub(hn::BitCast(kFloats, hn::Add(shifted, hidden)), hn::BitCast(kFloats, hidden)));
    const auto isSmall = hn::Lt(shifted, word(1u << 23));
    const auto sign = hn::ShiftLeft<24>(hn::And(code, word(0x80)));
    const auto bits = hn::Or(hn::IfThenElse(isSmall, subnormal, normal), sign);
    const auto value = hn::Mul(hn::BitCast(kFloats, bits), scale);
    hn::StoreU(hn::Max(hn::Min(value, max), min), kFloats, to);
  };
  forEachVector(reinterpret_cast<const std::uint8_t*>(in), count, out, step);
  return hn::GetLane(hn::MaxOfLanes(kWords, worst)) <= maxCode;
}

}  // namespace

void narrow(const float* in, std::size_t count, Fp8 format, int exponent, std::byte* out) {
  if (format == Fp8::e4m3) return narrowAll<3, 7>(in, count, exponent, out);
  narrowAll<2, 15>(in, count, exponent, out);
}

bool widen(const std::byte* in, std::size_t count, Fp8 format, int exponent, float limit,
           float* out) {
  const std::uint32_t maxCode = fp8MaxCode(format);
  if (format == Fp8::e4m3) return widenAll<3, 7>(in, count, maxCode, exponent, limit, out);
  return widenAll<2, 15>(in, count, maxCode, exponent, limit, out);
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace cleave::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cleave::kernels {

HWY_EXPORT(narrow);
HWY_EXPORT(widen);

void fp8FromFloat(const float* in, std::size_t count, Fp8 format, int exponent, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(narrow)(in, count, format, exponent, out);
}
bool floatFromFp8(const std::byte* in, std::size_t count, Fp8 format, int exponent, float limit,
                  float* out) {
  return HWY_DYNAMIC_DISPATCH(widen)(in, count, format, exponent, limit, out);
}

}  // namespace cleave::kernels
#endif  // HWY_ONCE
