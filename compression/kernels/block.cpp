// Blocks: groups of them are read three times, first from memory, then from the first-level cache:
// least and greatest; then all headers of the group at once; then codes.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/kernels/block.cpp"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h.
#include "compression/kernels/codes-inl.h"
#include "compression/kernels/kernels.h"
#include "compression/kernels/plain.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cleave::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

bool encode(const float* values, std::size_t blocks, const BlockFormat& format, std::uint64_t first,
            std::byte* headers, std::byte* codes) {
  return plain::encodeBlocks(values, blocks, format, first, headers, codes);
}

bool decode(const std::byte* headers, const std::byte* codes, std::size_t blocks,
            const BlockFormat& format, float limit, float* values) {
  return plain::decodeBlocks(headers, codes, blocks, format, limit, values);
}

#else

namespace {

constexpr std::size_t kGroup = 16;          // blocks at a time, at most
constexpr std::size_t kGroupValues = 4096;  // values at a time, at most
constexpr float kLargestBf16 = 0x1.fep127f;
constexpr float kLeastNormal = 0x1p-126f;

struct Group {
  alignas(64) float least[kGroup] = {};
  alignas(64) float greatest[kGroup] = {};
  alignas(64) float min[kGroup];
  alignas(64) float inverse[kGroup];  // of the step; 0 for a step of 0
  alignas(64) float step[kGroup];
  bool wide = false;  // a block's range overflows fp32
};

// False where a value is not finite.
HWY_INLINE bool findRanges(const float* values, std::size_t blocks, std::size_t size,
                           Group& group) {
  const Floats d = kFloats;
  auto broken = hn::Zero(d);
  for (std::size_t b = 0; b < blocks; ++b, values += size) {
    auto least = hn::LoadU(d, values);
    auto greatest = least;
    broken = hn::Or(broken, hn::Sub(least, least));  // +0 just where finite
    for (std::size_t j = kLanes; j < size; j += kLanes) {
      const auto x = hn::LoadU(d, values + j);
      least = hn::Min(least, x);
      greatest = hn::Max(greatest, x);
      broken = hn::Or(broken, hn::Sub(x, x));
    }
    group.least[b] = hn::GetLane(hn::MinOfLanes(d, least));
    group.greatest[b] = hn::GetLane(hn::MaxOfLanes(d, greatest));
  }
  const hn::RebindToUnsigned<Floats> d32;
  return hn::AllTrue(d32, hn::Eq(hn::BitCast(d32, broken), hn::Zero(d32)));
}

// plain::blockGrid with bf16, for all of a group. Writes all kGroup headers.
HWY_INLINE void findGrids(int top, Group& group, std::uint32_t* headers) {
  const Floats d = kFloats;
  const hn::RebindToUnsigned<Floats> d32;
  const hn::RebindToSigned<Floats> di32;
  const auto most = hn::Set(d, static_cast<float>(top));
  const auto upper = hn::Set(d32, 0xffff0000u);
  const auto lower = hn::Set(d32, 0x0000ffffu);
  const auto zero = hn::Zero(d);
  auto broken = zero;
  for (std::size_t g = 0; g < kGroup; g += kLanes) {
    const auto leastBits = hn::BitCast(d32, hn::Load(d, group.least + g));
    const auto sign = hn::BitCast(d32, hn::ShiftRight<31>(hn::BitCast(di32, leastBits)));
    const auto down = hn::And(hn::Add(leastBits, hn::And(sign, lower)), upper);
    const auto min = hn::Add(hn::Max(hn::BitCast(d, down), hn::Set(d, -kLargestBf16)), zero);
    const auto range = hn::Sub(hn::Add(hn::Load(d, group.greatest + g), zero), min);
    broken = hn::Or(broken, hn::Sub(range, range));
    auto step = hn::Max(hn::Div(range, most), zero);
    step = hn::IfThenZeroElse(hn::Eq(step, zero), hn::Max(step, hn::Set(d, kLeastNormal)));
    const auto up = hn::And(hn::Add(hn::BitCast(d32, step), lower), upper);
    step = hn::Min(hn::BitCast(d, up), hn::Set(d, kLargestBf16));
    const auto inverse = hn::IfThenZeroElse(hn::Eq(step, zero), hn::Div(hn::Set(d, 1.0f), step));
    hn::Store(min, d, group.min + g);
    hn::Store(inverse, d, group.inverse + g);
    hn::Store(step, d, group.step + g);
    hn::StoreU(hn::Or(hn::ShiftRight<16>(hn::BitCast(d32, min)), hn::BitCast(d32, step)), d32,
               headers + g);
  }
  group.wide = !hn::AllTrue(d32, hn::Eq(hn::BitCast(d32, broken), hn::Zero(d32)));
}

// The same one by one: for fp16 headers, and where a range overflows.
HWY_NOINLINE void findGridsPlainly(std::size_t blocks, int top, bool halfHeader, Group& group,
                                   std::uint32_t* headers) {
  group.wide = false;
  for (std::size_t b = 0; b < blocks; ++b) {
    const float least = group.least[b] + 0.0f;
    const float greatest = group.greatest[b] + 0.0f;
    const Grid grid = plain::blockGrid({least, greatest, true}, top, halfHeader);
    headers[b] = plain::blockHeader(grid, halfHeader);
    group.min[b] = grid.min;
    group.step[b] = grid.step;
    group.inverse[b] = grid.step > 0 ? 1.0f / grid.step : 0.0f;
    const float range = greatest - grid.min;
    group.wide = group.wide || !(range - range == 0);
  }
}

// plain.cpp's drawFor.
template <class D32>
HWY_INLINE hn::VFromD<Floats> drawsFor(D32 d32, hn::VFromD<D32> x, std::uint32_t high) {
  const hn::RebindToSigned<Floats> di32;
  x = hn::Xor(x, hn::ShiftRight<16>(x));
  x = hn::Mul(x, hn::Set(d32, 0x7feb352du));
  x = hn::Xor(x, hn::Set(d32, high));
  x = hn::Xor(x, hn::ShiftRight<15>(x));
  x = hn::Mul(x, hn::Set(d32, 0x846ca68bu));
  const auto draw = hn::ConvertTo(kFloats, hn::BitCast(di32, hn::ShiftRight<16>(x)));
  return hn::Mul(draw, hn::Set(kFloats, 0x1p-16f));
}

template <bool kStochastic>
HWY_INLINE void quantizeGroup(const float* values, std::size_t blocks, const BlockFormat& format,
                              std::uint32_t first, const Group& group, std::uint8_t* codes) {
  const Floats d = kFloats;
  const hn::RebindToUnsigned<Floats> d32;
  const hn::RebindToSigned<Floats> di32;
  const auto most = hn::Set(d, static_cast<float>((1 << format.bits) - 1));
  const auto noFraction = hn::Set(d, kNoFraction);
  const auto zero = hn::Zero(d);
  [[maybe_unused]] auto counter = hn::Iota(d32, first + format.keyLow);
  for (std::size_t b = 0; b < blocks; ++b) {
    const auto min = hn::Set(d, group.min[b]);
    const auto inverse = hn::Set(d, group.inverse[b]);
    for (std::size_t j = 0; j < format.size; j += kLanes) {
      auto exact = hn::Max(hn::Mul(hn::Sub(hn::LoadU(d, values + j), min), inverse), zero);
      if constexpr (kStochastic) {
        exact = hn::Min(hn::Add(exact, drawsFor(d32, counter, format.keyHigh)), most);
        exact = hn::ConvertTo(d, hn::ConvertTo(di32, exact));  // towards zero
        counter = hn::Add(counter, hn::Set(d32, static_cast<std::uint32_t>(kLanes)));
      } else {
        exact = hn::Min(exact, most);
      }
      storeCodes(hn::Add(exact, noFraction), codes + j);
    }
    values += format.size;
    codes += format.size;
  }
}

template <class AnyUnpacker>
HWY_INLINE bool decodeWith(const std::byte* headers, const std::byte* codes, std::size_t blocks,
                           const BlockFormat& format, float limit, float* values) {
  const AnyUnpacker unpacker(format.bits);
  const auto top = static_cast<float>((1 << format.bits) - 1);
  const std::size_t blockBytes = packedBytes(format.size, format.bits);
  const std::size_t steps = format.size / AnyUnpacker::kStep;
  const std::byte* const end = codes + blocks * blockBytes;
  for (std::size_t b = 0; b < blocks; ++b, codes += blockBytes, values += format.size) {
    Grid grid;
    if (!plain::blockGridOf(headers + b * kBlockHeaderBytes, format.halfHeader, grid)) return false;
    const float greatest = grid.step * top;
    if (HWY_UNLIKELY(!(greatest - greatest == 0))) {
      plain::dequantizeWide(codes, format.size, grid, format.bits, limit, values);
    } else if (HWY_LIKELY(static_cast<std::size_t>(end - codes) >=
                          blockBytes + AnyUnpacker::kReads)) {
      dequantizeSteps<true>(kFloats, unpacker, codes, steps, grid, limit, values);
    } else {
      std::byte padded[1024 + AnyUnpacker::kReads];  // the bytes behind do not matter
      std::memcpy(padded, codes, blockBytes);
      std::memset(padded + blockBytes, 0, AnyUnpacker::kReads);
      dequantizeSteps<true>(kFloats, unpacker, padded, steps, grid, limit, values);
    }
  }
  return true;
}

}  // namespace

bool encode(const float* values, std::size_t blocks, const BlockFormat& format, std::uint64_t first,
            std::byte* headers, std::byte* codes) {
  const int top = (1 << format.bits) - 1;
  const std::size_t most =
      kGroupValues / format.size < kGroup ? kGroupValues / format.size : kGroup;
  alignas(64) std::uint8_t unpacked[kGroupValues];
  std::uint32_t words[kGroup];
  for (std::size_t b = 0; b < blocks; b += most) {
    const std::size_t here = blocks - b < most ? blocks - b : most;
    const float* const in = values + b * format.size;
    Group group;
    if (!findRanges(in, here, format.size, group)) return false;
    if (!format.halfHeader) findGrids(top, group, words);
    if (format.halfHeader || group.wide)
      findGridsPlainly(here, top, format.halfHeader, group, words);
    std::memcpy(headers + b * kBlockHeaderBytes, words, here * kBlockHeaderBytes);

    std::byte* const packed = codes + packedBytes(b * format.size, format.bits);
    std::uint8_t* const bytes =
        format.bits == 8 ? reinterpret_cast<std::uint8_t*>(packed) : unpacked;
    const auto counter = static_cast<std::uint32_t>(first + b * format.size);
    if (format.stochastic) {
      quantizeGroup<true>(in, here, format, counter, group, bytes);
    } else {
      quantizeGroup<false>(in, here, format, counter, group, bytes);
    }
    for (std::size_t w = 0; group.wide && w < here; ++w) {
      const float range = group.greatest[w] - group.min[w];
      if (range - range == 0) continue;
      plain::quantizeWide(in + w * format.size, format.size, {group.min[w], group.step[w]}, top,
                          bytes + w * format.size);
    }
    if (format.bits < 8) packCodes(unpacked, here * format.size, format.bits, packed);
  }
  return true;
}

bool decode(const std::byte* headers, const std::byte* codes, std::size_t blocks,
            const BlockFormat& format, float limit, float* values) {
  if (format.bits == 8)
    return decodeWith<ByteUnpacker<Floats> >(headers, codes, blocks, format, limit, values);
  return decodeWith<Unpacker<Floats> >(headers, codes, blocks, format, limit, values);
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace cleave::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cleave::kernels {

HWY_EXPORT(encode);
HWY_EXPORT(decode);

bool encodeBlocks(const float* values, std::size_t blocks, const BlockFormat& format,
                  std::uint64_t first, std::byte* headers, std::byte* codes) {
  return HWY_DYNAMIC_DISPATCH(encode)(values, blocks, format, first, headers, codes);
}

bool decodeBlocks(const std::byte* headers, const std::byte* codes, std::size_t blocks,
                  const BlockFormat& format, float limit, float* values) {
  return HWY_DYNAMIC_DISPATCH(decode)(headers, codes, blocks, format, limit, values);
}

}  // namespace cleave::kernels
#endif  // HWY_ONCE
