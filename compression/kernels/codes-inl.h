// Codes between vectors and bytes, for each instruction set that includes this file: float values
// to integer codes, codes packed and unpacked, codes to values.
#if defined(CLEAVE_KERNELS_CODES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CLEAVE_KERNELS_CODES_INL_H
#undef CLEAVE_KERNELS_CODES_INL_H
#else
#define CLEAVE_KERNELS_CODES_INL_H
#endif

#include <cstdint>
#include <cstring>

#include "compression/kernels/kernels.h"
#include "hwy/highway.h"

#if HWY_TARGET != HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace cleave::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, 16>;
constexpr Floats kFloats;
constexpr std::size_t kLanes = hn::MaxLanes(kFloats);

// Adding it to 0…2^16 rounds to an integer, ties to even, which the lowest bits of the sum then
// are.
constexpr float kNoFraction = 0x1p23f;
constexpr std::uint32_t kNoFractionBits = 0x4b000000;

// The integers of `rounded`, floats to which kNoFraction was added.
template <class V>
HWY_INLINE void storeCodes(V rounded, std::uint8_t* out) {
  const hn::RebindToUnsigned<hn::DFromV<V>> d32;
  const hn::Rebind<std::uint8_t, decltype(d32)> d8;
  hn::StoreU(hn::TruncateTo(d8, hn::BitCast(d32, rounded)), d8, out);
}

template <class V>
HWY_INLINE void storeCodes(V rounded, std::uint16_t* out) {
  const hn::RebindToUnsigned<hn::DFromV<V>> d32;
  const hn::Rebind<std::uint16_t, decltype(d32)> d16;
  hn::StoreU(hn::TruncateTo(d16, hn::BitCast(d32, rounded)), d16, out);
}

// ---- Packing ----
// Neighbours are merged in vectors, until each 64-bit word holds 8 codes (of up to 8 bits) or 4 (of
// more) in its lowest bits. Words are then stored whole, each over the unused end of the one
// before.

HWY_INLINE void storeWords(const std::uint64_t* words, std::size_t count, int bits, std::uint8_t,
                           std::byte* out) {
  for (std::size_t w = 0; w < count; ++w)
    std::memcpy(out + w * static_cast<std::size_t>(bits), &words[w], 8);
}

HWY_INLINE void storeWords(const std::uint64_t* words, std::size_t count, int bits, std::uint16_t,
                           std::byte* out) {
  for (std::size_t w = 0; w < count; w += 2) {
    const std::uint64_t low = words[w] | words[w + 1] << (4 * bits);
    const std::uint64_t high = words[w + 1] >> (64 - 4 * bits);
    std::memcpy(out, &low, 8);
    std::memcpy(out + 8, &high, 8);
    out += bits;
  }
}

template <class D16>
HWY_INLINE hn::VFromD<D16> mergedPairs(D16 d16, const std::uint8_t* codes, int bits) {
  const hn::Repartition<std::uint8_t, D16> d8;
  const auto pairs = hn::BitCast(d16, hn::LoadU(d8, codes));
  return hn::Or(hn::And(pairs, hn::Set(d16, 0xff)),
                hn::ShiftLeftSame(hn::ShiftRight<8>(pairs), bits));
}

// 64 bytes of codes to words of 4 (16-bit codes) or 8.
HWY_INLINE void mergeCodes(const std::uint8_t* codes, int bits, std::uint64_t* words) {
  const hn::CappedTag<std::uint16_t, 32> d16;
  const hn::RepartitionToWide<decltype(d16)> d32;
  const hn::RepartitionToWide<decltype(d32)> d64;
  constexpr std::size_t kBytes = 2 * hn::MaxLanes(d16);
  for (std::size_t j = 0; j < 64; j += kBytes) {
    const auto x16 = mergedPairs(d16, codes + j, bits);
    const auto x32 = hn::BitCast(d32, x16);
    const auto y32 = hn::Or(hn::And(x32, hn::Set(d32, 0xffff)),
                            hn::ShiftLeftSame(hn::ShiftRight<16>(x32), 2 * bits));
    const auto x64 = hn::BitCast(d64, y32);
    const auto y64 = hn::Or(hn::And(x64, hn::Set(d64, 0xffffffff)),
                            hn::ShiftLeftSame(hn::ShiftRight<32>(x64), 4 * bits));
    hn::Store(y64, d64, words + j / 8);
  }
}

HWY_INLINE void mergeCodes(const std::uint16_t* codes, int bits, std::uint64_t* words) {
  const hn::CappedTag<std::uint16_t, 32> d16;
  const hn::RepartitionToWide<decltype(d16)> d32;
  const hn::RepartitionToWide<decltype(d32)> d64;
  constexpr std::size_t kCodes = hn::MaxLanes(d16);
  for (std::size_t j = 0; j < 32; j += kCodes) {
    const auto x32 = hn::BitCast(d32, hn::LoadU(d16, codes + j));
    const auto y32 = hn::Or(hn::And(x32, hn::Set(d32, 0xffff)),
                            hn::ShiftLeftSame(hn::ShiftRight<16>(x32), bits));
    const auto x64 = hn::BitCast(d64, y32);
    const auto y64 = hn::Or(hn::And(x64, hn::Set(d64, 0xffffffff)),
                            hn::ShiftLeftSame(hn::ShiftRight<32>(x64), 2 * bits));
    hn::Store(y64, d64, words + j / 4);
  }
}

// Writes packedBytes(count, bits). bits < 8 for codes of 8 bits, 8 < bits < 16 for those of 16.
template <typename Code>
HWY_NOINLINE void packCodes(const Code* codes, std::size_t count, int bits, std::byte* out) {
  constexpr std::size_t kCodes = 64 / sizeof(Code);
  constexpr std::size_t kOverhang = sizeof(Code) == 1 ? 8 : 16;
  const std::byte* const end = out + packedBytes(count, bits);
  const std::size_t step = packedBytes(kCodes, bits);
  alignas(64) std::uint64_t words[8];
  std::size_t j = 0;
  for (; j + kCodes <= count && static_cast<std::size_t>(end - out) >= step + kOverhang;
       j += kCodes) {
    mergeCodes(codes + j, bits, words);
    storeWords(words, 8, bits, Code{}, out);
    out += step;
  }
  for (; j < count; j += kCodes) {
    const std::size_t here = count - j < kCodes ? count - j : kCodes;
    Code padded[kCodes] = {};
    std::memcpy(padded, codes + j, here * sizeof(Code));
    mergeCodes(padded, bits, words);
    std::byte packed[64 + kOverhang];
    storeWords(words, 8, bits, Code{}, packed);
    std::memcpy(out, packed, packedBytes(here, bits));
    out += step;
  }
}

// ---- Unpacking ----
// Each lane takes the bytes that hold its code by a table look-up within 16 bytes, then shifts and
// masks.

template <class D>
struct Unpacker {
  static constexpr std::size_t kWidth = hn::MaxLanes(D());
  static constexpr std::size_t kStep = kWidth < 8 ? 8 : kWidth;  // codes, which fill whole bytes
  static constexpr std::size_t kReads = 16;  // bytes from where a step's codes begin

  explicit Unpacker(int bits) : stepBytes(packedBytes(kStep, bits)), mask((1u << bits) - 1) {
    for (std::size_t k = 0; k < kStep; ++k) {
      const std::size_t bit = k * static_cast<std::size_t>(bits);
      shifts[k] = static_cast<std::uint32_t>(bit % 8);
      const std::size_t spans = (bit % 8 + static_cast<std::size_t>(bits) + 7) / 8;
      for (std::size_t b = 0; b < 4; ++b)
        bytes[4 * k + b] = static_cast<std::uint8_t>(b < spans ? bit / 8 + b : 0x80);  // 0x80: zero
    }
  }

  HWY_INLINE hn::VFromD<D> at(const std::byte* in, std::size_t v) const {
    const D d;
    const hn::RebindToUnsigned<D> d32;
    const hn::RebindToSigned<D> di32;
    const hn::Repartition<std::uint8_t, D> d8;
    const auto sixteen = hn::LoadDup128(d8, reinterpret_cast<const std::uint8_t*>(in));
    const auto held = hn::TableLookupBytesOr0(sixteen, hn::Load(d8, bytes + 4 * v * kWidth));
    const auto shifted = hn::BitCast(d32, held) >> hn::Load(d32, shifts + v * kWidth);
    return hn::ConvertTo(d, hn::BitCast(di32, hn::And(shifted, hn::Set(d32, mask))));
  }

  std::size_t stepBytes;
  std::uint32_t mask;
  alignas(64) std::uint8_t bytes[4 * kStep];
  alignas(64) std::uint32_t shifts[kStep];
};

// Codes of 8 bits need none of it.
template <class D>
struct ByteUnpacker {
  static constexpr std::size_t kWidth = hn::MaxLanes(D());
  static constexpr std::size_t kStep = kWidth < 8 ? 8 : kWidth;
  static constexpr std::size_t kReads = kStep;

  explicit ByteUnpacker(int /*bits*/) {}

  HWY_INLINE hn::VFromD<D> at(const std::byte* in, std::size_t v) const {
    const D d;
    const hn::RebindToSigned<D> di32;
    const hn::Rebind<std::uint8_t, D> d8;
    const auto* const codes = reinterpret_cast<const std::uint8_t*>(in) + v * kWidth;
    return hn::ConvertTo(d, hn::PromoteTo(di32, hn::LoadU(d8, codes)));
  }

  static constexpr std::size_t stepBytes = kStep;
};

// out = min + step * code, for whole steps of the unpacker, each of which reads kReads bytes.
template <bool kClamp, class D, template <class> class AnyUnpacker>
HWY_INLINE void dequantizeSteps(D d, const AnyUnpacker<D>& unpacker, const std::byte* in,
                                std::size_t steps, Grid grid, float limit, float* out) {
  using U = AnyUnpacker<D>;
  const auto min = hn::Set(d, grid.min);
  const auto step = hn::Set(d, grid.step);
  const auto most = hn::Set(d, limit);
  const auto least = hn::Set(d, -limit);
  for (std::size_t s = 0; s < steps; ++s) {
    for (std::size_t v = 0; v < U::kStep / U::kWidth; ++v) {
      auto value = hn::Add(min, hn::Mul(step, unpacker.at(in, v)));
      if constexpr (kClamp) value = hn::Max(hn::Min(value, most), least);
      hn::StoreU(value, d, out + v * U::kWidth);
    }
    in += unpacker.stepBytes;
    out += U::kStep;
  }
}

}  // namespace
}  // namespace cleave::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET != HWY_SCALAR
#endif  // include guard of each target
