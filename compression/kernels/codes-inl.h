// Conversion between codes in vectors and bytes, for each instruction set that includes this file:
// quantised floats to integer codes, packing and unpacking, codes to values.
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

// Adding this to a number in -1/2…2^16 rounds the number to an integer, ties to even. The integer
// is then in the lowest bits of the sum.
constexpr float kNoFraction = 0x1.8p23f;
constexpr std::uint32_t kNoFractionBits = 0x4b400000;

// ---- Packing ----
// Vectors of rounded floats are shifted into each other, so that each 32-bit lane holds codes of 8
// or 16 bits from several vectors, and two shuffles put these into the order of the values. Codes
// of fewer bits are then merged with their neighbours, until each 64-bit word holds 8 codes (of up
// to 8 bits) or 4 (of more) in its lowest bits. Whole words are stored, each overwriting the unused
// end of the previous one.

// Bytes that may be written beyond the packed codes.
constexpr std::size_t kOverhang = 16;

template <class D, typename Code>
struct Joiner {
  using D32 = hn::RebindToUnsigned<D>;
  using D8 = hn::Repartition<std::uint8_t, D>;
  using V = hn::VFromD<D>;
  static constexpr std::size_t kWidth = hn::MaxLanes(D());
  static constexpr std::size_t kVectors = 4 / sizeof(Code);
  static constexpr std::size_t kCodes = kVectors * kWidth;

  Joiner() {
    constexpr std::size_t kUnit = sizeof(Code);
    alignas(64) std::uint8_t bytes[4 * kWidth];
    for (std::size_t j = 0; j < 4 * kWidth; ++j) {  // within 16 bytes: by vector, then by lane
      const std::size_t vector = j % 16 / (4 * kUnit), lane = j % (4 * kUnit) / kUnit;
      bytes[j] = static_cast<std::uint8_t>(4 * lane + kUnit * vector + j % kUnit);
    }
    withinBlocks = hn::Load(D8(), bytes);
    alignas(64) std::uint32_t lanes[kWidth];
    for (std::size_t j = 0; j < kWidth; ++j) {  // a vector's lanes stay together
      const std::size_t vector = j / (kWidth / kVectors), place = j % (kWidth / kVectors);
      lanes[j] = static_cast<std::uint32_t>(place / kUnit * 4 + vector * kUnit + place % kUnit);
    }
    acrossBlocks = hn::SetTableIndices(D32(), lanes);
  }

  HWY_INLINE hn::VFromD<D8> shuffled(hn::VFromD<D32> joined) const {
    const auto blocks = hn::TableLookupBytes(hn::BitCast(D8(), joined), withinBlocks);
    if constexpr (kWidth == 4) return blocks;
    return hn::BitCast(D8(), hn::TableLookupLanes(hn::BitCast(D32(), blocks), acrossBlocks));
  }

  // The arguments are floats to which kNoFraction was added.
  HWY_INLINE hn::VFromD<D8> operator()(V v0, V v1, V v2, V v3) const {
    const D32 d32;
    const auto low = hn::Add(hn::BitCast(d32, v0), hn::ShiftLeft<8>(hn::BitCast(d32, v1)));
    const auto high =
        hn::Add(hn::ShiftLeft<16>(hn::BitCast(d32, v2)), hn::ShiftLeft<24>(hn::BitCast(d32, v3)));
    constexpr std::uint32_t kRest = kNoFractionBits + (kNoFractionBits << 8);  // shifted further: 0
    return shuffled(hn::Sub(hn::Add(low, high), hn::Set(d32, kRest)));
  }
  HWY_INLINE hn::VFromD<D8> operator()(V v0, V v1) const {
    const D32 d32;
    const auto both = hn::Add(hn::BitCast(d32, v0), hn::ShiftLeft<16>(hn::BitCast(d32, v1)));
    return shuffled(hn::Sub(both, hn::Set(d32, kNoFractionBits)));
  }

  hn::VFromD<D8> withinBlocks;
  decltype(hn::SetTableIndices(D32(), static_cast<const std::uint32_t*>(nullptr))) acrossBlocks;
};

template <class D8>
HWY_INLINE hn::VFromD<hn::Repartition<std::uint64_t, D8>> mergeHalves(
    hn::VFromD<hn::Repartition<std::uint32_t, D8>> x, int bits) {
  const hn::Repartition<std::uint32_t, D8> d32;
  const hn::Repartition<std::uint64_t, D8> d64;
  const auto y =
      hn::Or(hn::And(x, hn::Set(d32, 0xffff)), hn::ShiftLeftSame(hn::ShiftRight<16>(x), bits));
  const auto z = hn::BitCast(d64, y);
  return hn::Or(hn::And(z, hn::Set(d64, 0xffffffff)),
                hn::ShiftLeftSame(hn::ShiftRight<32>(z), 2 * bits));
}

// Packs a joiner's codes to `bits` each. Writes up to kOverhang bytes beyond them.
template <class D8>
HWY_INLINE void storePacked(D8 d8, hn::VFromD<D8> codes, int bits, std::uint8_t, std::byte* out) {
  if (bits == 8) {
    hn::StoreU(codes, d8, reinterpret_cast<std::uint8_t*>(out));
    return;
  }
  const hn::Repartition<std::uint16_t, D8> d16;
  const hn::Repartition<std::uint32_t, D8> d32;
  const hn::Repartition<std::uint64_t, D8> d64;
  const auto pairs = hn::BitCast(d16, codes);
  const auto merged =
      hn::Or(hn::And(pairs, hn::Set(d16, 0xff)), hn::ShiftLeftSame(hn::ShiftRight<8>(pairs), bits));
  alignas(64) std::uint64_t words[hn::MaxLanes(d64)];
  hn::Store(mergeHalves<D8>(hn::BitCast(d32, merged), 2 * bits), d64, words);
  for (const std::uint64_t word : words) {
    std::memcpy(out, &word, 8);
    out += bits;
  }
}

template <class D8>
HWY_INLINE void storePacked(D8 d8, hn::VFromD<D8> codes, int bits, std::uint16_t, std::byte* out) {
  if (bits == 16) {
    hn::StoreU(codes, d8, reinterpret_cast<std::uint8_t*>(out));
    return;
  }
  const hn::Repartition<std::uint32_t, D8> d32;
  const hn::Repartition<std::uint64_t, D8> d64;
  alignas(64) std::uint64_t words[hn::MaxLanes(d64)];
  hn::Store(mergeHalves<D8>(hn::BitCast(d32, codes), bits), d64, words);
  for (std::size_t w = 0; w < hn::MaxLanes(d64); w += 2) {
    const std::uint64_t low = words[w] | words[w + 1] << (4 * bits);
    const std::uint64_t high = words[w + 1] >> (64 - 4 * bits);
    std::memcpy(out, &low, 8);
    std::memcpy(out + 8, &high, 8);
    out += bits;
  }
}

// Packs `count` codes, kCodes at a time; make(first value) returns them as joined vectors.
template <class D, typename Code, typename Make>
HWY_INLINE void packRun(const Joiner<D, Code>& joiner, std::size_t count, int bits, Make make,
                        std::byte* out) {
  const typename Joiner<D, Code>::D8 d8;
  const std::size_t bytes = packedBytes(Joiner<D, Code>::kCodes, bits);
  for (std::size_t j = 0; j < count; j += Joiner<D, Code>::kCodes, out += bytes)
    storePacked(d8, make(joiner, j), bits, Code{}, out);
}

// ---- Unpacking ----
// Each lane fetches the bytes that contain its code by a table look-up within 16 bytes, then shifts
// and masks.

template <class D>
struct Unpacker {
  static constexpr std::size_t kWidth = hn::MaxLanes(D());
  static constexpr std::size_t kStep = kWidth < 8 ? 8 : kWidth;  // codes, which fill whole bytes
  static constexpr std::size_t kReads = 16;  // bytes read from the start of a step's codes

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

// Codes of 8 bits need no unpacking.
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

  const std::size_t stepBytes = kStep;
};

// out = min + step * code, for whole steps of the unpacker, each of which reads kReads bytes.
template <bool kClamp, class D, template <class> class AnyUnpacker>
HWY_INLINE void dequantizeSteps(D d, const AnyUnpacker<D>& unpacker, const std::byte* in,
                                std::size_t steps, QuantGrid grid, float limit, float* out) {
  using U = AnyUnpacker<D>;
  const auto min = hn::Set(d, grid.min);
  const auto step = hn::Set(d, grid.step);
  const auto upperLimit = hn::Set(d, limit);
  const auto lowerLimit = hn::Set(d, -limit);
  for (std::size_t s = 0; s < steps; ++s) {
    for (std::size_t v = 0; v < U::kStep / U::kWidth; ++v) {
      auto value = hn::Add(min, hn::Mul(step, unpacker.at(in, v)));
      if constexpr (kClamp) value = hn::Max(hn::Min(value, upperLimit), lowerLimit);
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
