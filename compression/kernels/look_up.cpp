#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/kernels/look_up.cpp"
#include <hwy/foreach_target.h>
// Must follow foreach_target.h.
#include <hwy/highway.h>

#include <cstring>

#include "compression/kernels/kernels.h"
#include "compression/kernels/plain.h"

HWY_BEFORE_NAMESPACE();
namespace cleave::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// AVX-512 looks up 16 codes in 32 values with one instruction, which Highway 1.0.3 does not expose.
// Tables of up to 256 values stay in registers; on other instruction sets, loads are faster.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL

using D = hn::FixedTag<float, 16>;
using DI = hn::RebindToSigned<D>;
using V = hn::Vec<D>;
using VI = hn::Vec<DI>;

constexpr int kPairBits = 5;

HWY_INLINE V lookUpPair(V low, VI codes, V high) {
  return V{_mm512_permutex2var_ps(low.raw, codes.raw, high.raw)};
}

// 2^bits pairs of vectors hold the table. The codes' upper bits select one of the pairs; the
// highest bit is evaluated last.
template <int bits>
HWY_INLINE V lookUpIn(const V* pairs, VI codes) {
  if constexpr (bits == 0) {
    return lookUpPair(pairs[0], codes, pairs[1]);
  } else {
    constexpr int kHalf = 1 << bits;  // vectors
    const V low = lookUpIn<bits - 1>(pairs, codes);
    const V high = lookUpIn<bits - 1>(pairs + kHalf, codes);
    const auto upper = hn::TestBit(codes, hn::Set(DI(), 1 << (kPairBits + bits - 1)));
    return hn::IfThenElse(hn::RebindMask(D(), upper), high, low);
  }
}

template <int bits>
void lookUpAll(const std::uint8_t* HWY_RESTRICT codes, std::size_t count,
               const float* HWY_RESTRICT table, float* HWY_RESTRICT values) {
  constexpr std::size_t kLanes = 16;
  const D d;
  const hn::Rebind<std::uint8_t, D> dCode;
  V pairs[2 << bits];
  for (std::size_t k = 0; k < std::size_t{2} << bits; ++k) {
    pairs[k] = hn::LoadU(d, table + k * kLanes);
  }
  std::size_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    const VI some = hn::PromoteTo(DI(), hn::LoadU(dCode, codes + j));
    hn::StoreU(lookUpIn<bits>(pairs, some), d, values + j);
  }
  plain::lookUp(codes + j, count - j, table, values + j);
}

void lookUp(const std::uint8_t* codes, std::size_t count, int bits, const float* table,
            float* values) {
  switch (bits) {
    case 8:
      return lookUpAll<3>(codes, count, table, values);
    case 7:
      return lookUpAll<2>(codes, count, table, values);
    case 6:
      return lookUpAll<1>(codes, count, table, values);
    default:
      return lookUpAll<0>(codes, count, table, values);
  }
}

#else

void lookUp(const std::uint8_t* codes, std::size_t count, int /*bits*/, const float* table,
            float* values) {
  plain::lookUp(codes, count, table, values);
}

#endif

#if HWY_TARGET == HWY_SCALAR

bool valuesInPieces(const std::uint8_t*, std::size_t, const PieceLines&, float*) { return false; }

#else

bool valuesInPieces(const std::uint8_t* codes, std::size_t count, const PieceLines& lines,
                    float* values) {
  const hn::CappedTag<float, PieceLines::kMaxPieces> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<std::uint8_t, decltype(d)> d8;
  const std::size_t lanes = hn::Lanes(d);
  if (std::size_t{1} << lines.pieceBits > lanes) return false;
  const auto mins = hn::LoadU(d, lines.mins);
  const auto steps = hn::LoadU(d, lines.steps);
  const auto within = hn::Set(di, (1 << lines.bits) - 1);
  const auto valuesOf = [&](const std::uint8_t* from) HWY_ATTR {
    const auto code = hn::PromoteTo(di, hn::LoadU(d8, from));
    const auto piece = hn::IndicesFromVec(d, hn::ShiftRightSame(code, lines.bits));
    return hn::MulAdd(hn::ConvertTo(d, hn::And(code, within)), hn::TableLookupLanes(steps, piece),
                      hn::TableLookupLanes(mins, piece));
  };
  std::size_t j = 0;
  for (; j + lanes <= count; j += lanes) hn::StoreU(valuesOf(codes + j), d, values + j);
  if (j == count) return true;
  std::uint8_t lastCodes[PieceLines::kMaxPieces] = {};
  float lastValues[PieceLines::kMaxPieces];
  std::memcpy(lastCodes, codes + j, count - j);
  hn::StoreU(valuesOf(lastCodes), d, lastValues);
  std::memcpy(values + j, lastValues, (count - j) * sizeof(float));
  return true;
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace cleave::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cleave::kernels {
namespace {

HWY_EXPORT(lookUp);
HWY_EXPORT(valuesInPieces);

}  // namespace

void lookUp(const std::uint8_t* codes, std::size_t count, int bits, const float* table,
            float* values) {
  HWY_DYNAMIC_DISPATCH(lookUp)(codes, count, bits, table, values);
}

bool valuesInPieces(const std::uint8_t* codes, std::size_t count, const PieceLines& lines,
                    float* values) {
  return HWY_DYNAMIC_DISPATCH(valuesInPieces)(codes, count, lines, values);
}

}  // namespace cleave::kernels
#endif  // HWY_ONCE
