// Blocks are processed in groups, in three passes: ranges, then all headers of the group at once,
// then codes. The values are read from memory in the first pass, and from the L1 cache afterwards.
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

constexpr std::size_t kGroup = 16;          // maximum blocks at a time
constexpr std::size_t kGroupValues = 4096;  // maximum values at a time
constexpr float kLargestBf16 = 0x1.fep127f;
constexpr float kMinNormal = 0x1p-126f;

struct Group {
  alignas(64) float rangeMin[kGroup] = {};
  alignas(64) float rangeMax[kGroup] = {};
  alignas(64) float min[kGroup];
  alignas(64) float inverse[kGroup];  // inverse of the step; 0 for a step of 0
  alignas(64) float step[kGroup];
  bool wide = false;  // whether a block is wide; see plain::isWide
};

struct LaneMin {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Min(a, b);
  }
};
struct LaneMax {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Max(a, b);
  }
};

// Reduces a vector to four values: value j from lanes j, j + 4, j + 8, …
template <class D, class Choose>
HWY_INLINE void storeFour(D d, hn::VFromD<D> v, Choose choose, float* out) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    hn::StoreU(v, d, out);
  } else {
    const hn::Half<D> half;
    storeFour(half, choose(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), choose, out);
  }
}

// Reduces each of four vectors to one lane.
template <class D, class Choose>
HWY_INLINE void reduceFour(D d, hn::VFromD<D> v0, hn::VFromD<D> v1, hn::VFromD<D> v2,
                           hn::VFromD<D> v3, Choose choose, float* out) {
  const hn::Repartition<std::uint64_t, D> d64;
  const auto v01 =
      hn::BitCast(d64, choose(hn::InterleaveLower(d, v0, v1), hn::InterleaveUpper(d, v0, v1)));
  const auto v23 =
      hn::BitCast(d64, choose(hn::InterleaveLower(d, v2, v3), hn::InterleaveUpper(d, v2, v3)));
  storeFour(d,
            choose(hn::BitCast(d, hn::InterleaveLower(d64, v01, v23)),
                   hn::BitCast(d, hn::InterleaveUpper(d64, v01, v23))),
            choose, out);
}

// Returns false if a value is not finite.
HWY_INLINE bool findRanges(const float* values, std::size_t blocks, std::size_t size,
                           Group& group) {
  const Floats d = kFloats;
  using V = hn::VFromD<Floats>;
  auto sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  const auto take = [&](std::size_t b, V& min, V& max, V& sum) HWY_ATTR {
    // Four blocks at a time: the last one is repeated to fill up.
    const float* const in = values + (b < blocks ? b : blocks - 1) * size;
    min = hn::LoadU(d, in);
    max = min;
    sum = hn::Add(sum, min);
    for (std::size_t j = kLanes; j < size; j += kLanes) {
      const auto x = hn::LoadU(d, in + j);
      min = hn::Min(min, x);
      max = hn::Max(max, x);
      sum = hn::Add(sum, x);
    }
  };
  for (std::size_t b = 0; b < blocks; b += 4) {
    V min0, min1, min2, min3, max0, max1, max2, max3;
    take(b, min0, max0, sum0);
    take(b + 1, min1, max1, sum1);
    take(b + 2, min2, max2, sum2);
    take(b + 3, min3, max3, sum3);
    reduceFour(d, min0, min1, min2, min3, LaneMin(), group.rangeMin + b);
    reduceFour(d, max0, max1, max2, max3, LaneMax(), group.rangeMax + b);
  }
  // NaN and infinity persist in a sum. A sum of finite values may overflow too, so each value is
  // checked then.
  const auto sum = hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3));
  const bool finite = hn::AllTrue(d, hn::Eq(hn::Sub(sum, sum), hn::Zero(d)));
  return HWY_LIKELY(finite) || rangeOf(values, blocks * size).finite;
}

// A vector version of plain::blockGrid() with bf16 headers, for a whole group. Writes all kGroup
// headers.
HWY_INLINE void findGrids(int top, Group& group, std::uint32_t* headers) {
  const Floats d = kFloats;
  const hn::RebindToUnsigned<Floats> d32;
  const hn::RebindToSigned<Floats> di32;
  const auto maxCode = hn::Set(d, static_cast<float>(top));
  const auto upper = hn::Set(d32, 0xffff0000u);
  const auto lower = hn::Set(d32, 0x0000ffffu);
  const auto zero = hn::Zero(d);
  const auto infinity = hn::BitCast(d, hn::Set(d32, 0x7f800000u));
  group.wide = false;
  for (std::size_t g = 0; g < kGroup; g += kLanes) {
    const auto rangeMin = hn::Add(hn::Load(d, group.rangeMin + g), zero);
    const auto rangeMinBits = hn::BitCast(d32, rangeMin);
    const auto sign = hn::BitCast(d32, hn::ShiftRight<31>(hn::BitCast(di32, rangeMinBits)));
    const auto down = hn::And(hn::Add(rangeMinBits, hn::And(sign, lower)), upper);
    const auto min = hn::Add(hn::Max(hn::BitCast(d, down), hn::Set(d, -kLargestBf16)), zero);
    const auto range = hn::Sub(hn::Add(hn::Load(d, group.rangeMax + g), zero), min);
    const auto exact = hn::Max(hn::Div(range, maxCode), zero);
    auto step = hn::IfThenZeroElse(hn::Eq(exact, zero), hn::Max(exact, hn::Set(d, kMinNormal)));
    const auto up = hn::And(hn::Add(hn::BitCast(d32, step), lower), upper);
    step = hn::Min(hn::BitCast(d, up), hn::Set(d, kLargestBf16));
    const auto inverse = hn::IfThenZeroElse(hn::Eq(step, zero), hn::Div(hn::Set(d, 1.0f), step));
    const auto narrow =
        hn::And(hn::And(hn::Le(min, rangeMin), hn::Ge(step, exact)), hn::Lt(range, infinity));
    group.wide = group.wide || !hn::AllTrue(d, narrow);
    hn::Store(min, d, group.min + g);
    hn::Store(inverse, d, group.inverse + g);
    hn::Store(step, d, group.step + g);
    const auto header = hn::Or(hn::ShiftRight<16>(hn::BitCast(d32, min)), hn::BitCast(d32, step));
    hn::StoreU(header, d32, headers + g);
  }
}

// Like findGrids(), one block at a time: for fp16 headers, or if a block is wide.
HWY_NOINLINE void findGridsScalar(std::size_t blocks, int top, bool halfHeader, Group& group,
                                  std::uint32_t* headers) {
  group.wide = false;
  for (std::size_t b = 0; b < blocks; ++b) {
    const Range range{group.rangeMin[b] + 0.0f, group.rangeMax[b] + 0.0f, true};
    const QuantGrid grid = plain::blockGrid(range, top, halfHeader);
    headers[b] = plain::blockHeader(grid, halfHeader);
    group.min[b] = grid.min;
    group.step[b] = grid.step;
    group.inverse[b] = grid.step > 0 ? 1.0f / grid.step : 0.0f;
    group.wide = group.wide || plain::isWide(range, grid, top);
  }
}

// A vector version of drawFor() in plain.cpp.
template <class D>
HWY_INLINE hn::VFromD<D> drawsFor(D d, hn::VFromD<hn::RebindToUnsigned<D> > x, std::uint32_t high) {
  const hn::RebindToUnsigned<D> d32;
  x = hn::Xor(x, hn::ShiftRight<16>(x));
  x = hn::Mul(x, hn::Set(d32, 0x7feb352du));
  x = hn::Xor(x, hn::Set(d32, high));
  x = hn::Xor(x, hn::ShiftRight<15>(x));
  x = hn::Mul(x, hn::Set(d32, 0x846ca68bu));
  const auto bits = hn::Or(hn::ShiftRight<9>(x), hn::Set(d32, 0x3f800000u));
  return hn::Sub(hn::BitCast(d, bits), hn::Set(d, 1.5f));
}

// Writes up to kOverhang bytes beyond the codes.
template <bool kStochastic, class D>
HWY_INLINE void quantizeGroup(D d, const float* values, std::size_t blocks,
                              const BlockFormat& format, std::uint32_t first, const Group& group,
                              std::byte* codes) {
  using Join = Joiner<D, std::uint8_t>;
  constexpr std::size_t kWidth = hn::MaxLanes(D());
  const hn::RebindToUnsigned<D> d32;
  const std::size_t blockBytes = packedBytes(format.size, format.bits);
  const auto maxCode = hn::Set(d, static_cast<float>((1 << format.bits) - 1));
  const auto noFraction = hn::Set(d, kNoFraction);
  const auto iota = hn::Iota(d32, first + format.keyLow);
  const Join joiner;
  for (std::size_t b = 0; b < blocks; ++b) {
    const auto min = hn::Set(d, group.min[b]);
    const auto inverse = hn::Set(d, group.inverse[b]);
    const auto rounded = [&](std::size_t j) HWY_ATTR {
      auto exact = hn::Mul(hn::Sub(hn::LoadU(d, values + j), min), inverse);
      if constexpr (kStochastic) {
        const auto place =
            hn::Add(iota, hn::Set(d32, static_cast<std::uint32_t>(b * format.size + j)));
        exact = hn::Min(hn::Add(exact, drawsFor(d, place, format.keyHigh)), maxCode);
      }
      return hn::Add(exact, noFraction);
    };
    const auto make = [&](const Join& join, std::size_t j) HWY_ATTR {
      return join(rounded(j), rounded(j + kWidth), rounded(j + 2 * kWidth),
                  rounded(j + 3 * kWidth));
    };
    packRun(joiner, format.size, format.bits, make, codes);
    values += format.size;
    codes += blockBytes;
  }
}

template <class D>
HWY_INLINE void quantizeAnyGroup(D d, const float* values, std::size_t blocks,
                                 const BlockFormat& format, std::uint32_t first, const Group& group,
                                 std::byte* codes) {
  if (format.stochastic) {
    quantizeGroup<true>(d, values, blocks, format, first, group, codes);
  } else {
    quantizeGroup<false>(d, values, blocks, format, first, group, codes);
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
    QuantGrid grid;
    if (!plain::blockGridOf(headers + b * kBlockHeaderBytes, format.halfHeader, grid)) return false;
    const float span = grid.step * top;
    if (HWY_UNLIKELY(!(span - span == 0))) {
      plain::dequantizeWide(codes, format.size, grid, format.bits, limit, values);
    } else if (HWY_LIKELY(static_cast<std::size_t>(end - codes) >=
                          blockBytes + AnyUnpacker::kReads)) {
      dequantizeSteps<true>(kFloats, unpacker, codes, steps, grid, limit, values);
    } else {
      std::byte padded[1024 + AnyUnpacker::kReads];  // the bytes beyond the block have no effect
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
  const std::size_t groupBlocks =
      kGroupValues / format.size < kGroup ? kGroupValues / format.size : kGroup;
  const std::size_t blockBytes = packedBytes(format.size, format.bits);
  using Eight = hn::CappedTag<float, 8>;  // four of its vectors are the smallest block
  std::byte last[kGroupValues + kOverhang];
  alignas(64) std::uint32_t words[kGroup];
  for (std::size_t b = 0; b < blocks; b += groupBlocks) {
    const std::size_t here = blocks - b < groupBlocks ? blocks - b : groupBlocks;
    const float* const in = values + b * format.size;
    Group group;
    if (!findRanges(in, here, format.size, group)) return false;
    if (!format.halfHeader) findGrids(top, group, words);
    if (format.halfHeader || group.wide)
      findGridsScalar(here, top, format.halfHeader, group, words);
    std::memcpy(headers + b * kBlockHeaderBytes, words, here * kBlockHeaderBytes);

    // Nothing may be written beyond the last codes.
    const bool isLast = b + here == blocks;
    std::byte* const out = codes + b * blockBytes;
    std::byte* const packed = isLast ? last : out;
    const auto counter = static_cast<std::uint32_t>(first + b * format.size);
    if (format.size < 4 * kLanes) {
      quantizeAnyGroup(Eight(), in, here, format, counter, group, packed);
    } else {
      quantizeAnyGroup(kFloats, in, here, format, counter, group, packed);
    }
    if (isLast) std::memcpy(out, last, here * blockBytes);
    for (std::size_t w = 0; group.wide && w < here; ++w) {
      plain::quantizeIfWide(in + w * format.size, format,
                            {group.rangeMin[w] + 0.0f, group.rangeMax[w] + 0.0f, true},
                            {group.min[w], group.step[w]}, out + w * blockBytes);
    }
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
