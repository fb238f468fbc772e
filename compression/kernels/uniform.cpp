// Kernels with one grid for all values.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/kernels/uniform.cpp"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h.
#include "compression/kernels/codes-inl.h"
#include "compression/kernels/kernels.h"
#include "compression/kernels/plain.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cleave::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

void encodeGrid(const float* values, std::size_t count, QuantGrid grid, int bits,
                std::byte* codes) {
  plain::quantize(values, count, grid, bits, codes);
}
void decodeGrid(const std::byte* codes, std::size_t count, QuantGrid grid, int bits,
                float* values) {
  plain::dequantize(codes, count, grid, bits, values);
}

#else

namespace {

constexpr std::size_t kTail = 128;  // values; at least as many as a joiner takes at once
static_assert(kTail % Joiner<Floats, std::uint8_t>::kCodes == 0);

template <typename Code>
HWY_INLINE void quantizeAll(const float* values, std::size_t count, QuantGrid grid, int bits,
                            std::byte* out) {
  using Join = Joiner<Floats, Code>;
  const Floats d = kFloats;
  const auto min = hn::Set(d, grid.min);
  const auto step = hn::Set(d, grid.step);
  const auto maxCode = hn::Set(d, static_cast<float>((1 << bits) - 1));
  const auto noFraction = hn::Set(d, kNoFraction);
  const auto rounded = [&](const float* in) HWY_ATTR {
    const auto exact = hn::Div(hn::Sub(hn::LoadU(d, in), min), step);
    return hn::Add(hn::Min(exact, maxCode), noFraction);
  };
  const Join joiner;
  const auto packFrom = [&](const float* in, std::size_t values, std::byte* packed) HWY_ATTR {
    const auto make = [&](const Join& join, std::size_t j) HWY_ATTR {
      if constexpr (sizeof(Code) == 1) {
        return join(rounded(in + j), rounded(in + j + kLanes), rounded(in + j + 2 * kLanes),
                    rounded(in + j + 3 * kLanes));
      } else {
        return join(rounded(in + j), rounded(in + j + kLanes));
      }
    };
    packRun(joiner, values, bits, make, packed);
  };
  // The last values are packed separately: nothing may be written beyond them.
  const std::size_t whole = count < kTail ? 0 : (count - kTail) / kTail * kTail;
  packFrom(values, whole, out);
  std::byte packed[2 * 2 * kTail + kOverhang];
  float padded[2 * kTail] = {};
  std::memcpy(padded, values + whole, (count - whole) * sizeof(float));
  for (std::size_t j = count - whole; j < 2 * kTail; ++j) padded[j] = grid.min;  // code 0
  packFrom(padded, 2 * kTail, packed);
  std::memcpy(out + packedBytes(whole, bits), packed, packedBytes(count - whole, bits));
}

template <class AnyUnpacker, class D>
HWY_INLINE void dequantizeAll(D d, const std::byte* codes, std::size_t count, QuantGrid grid,
                              int bits, float* values) {
  const AnyUnpacker unpacker(bits);
  const std::size_t bytes = packedBytes(count, bits);
  std::size_t steps = count / AnyUnpacker::kStep;
  // A step may read beyond its own bytes, so the last few values are decoded one by one.
  while (steps > 0 && (steps - 1) * unpacker.stepBytes + AnyUnpacker::kReads > bytes) --steps;
  dequantizeSteps<false>(d, unpacker, codes, steps, grid, 0, values);
  const std::size_t done = steps * AnyUnpacker::kStep;
  plain::dequantize(codes + steps * unpacker.stepBytes, count - done, grid, bits, values + done);
}

}  // namespace

void encodeGrid(const float* values, std::size_t count, QuantGrid grid, int bits,
                std::byte* codes) {
  if (bits <= 8) return quantizeAll<std::uint8_t>(values, count, grid, bits, codes);
  quantizeAll<std::uint16_t>(values, count, grid, bits, codes);
}

void decodeGrid(const std::byte* codes, std::size_t count, QuantGrid grid, int bits,
                float* values) {
  // With more than 8 bits, 16 bytes hold only 8 codes.
  using Eight = hn::CappedTag<float, 8>;
  if (bits == 8) {
    dequantizeAll<ByteUnpacker<Floats> >(kFloats, codes, count, grid, bits, values);
  } else if (bits < 8) {
    dequantizeAll<Unpacker<Floats> >(kFloats, codes, count, grid, bits, values);
  } else {
    dequantizeAll<Unpacker<Eight> >(Eight(), codes, count, grid, bits, values);
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace cleave::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cleave::kernels {

HWY_EXPORT(encodeGrid);
HWY_EXPORT(decodeGrid);

void quantize(const float* values, std::size_t count, QuantGrid grid, int bits, std::byte* codes) {
  HWY_DYNAMIC_DISPATCH(encodeGrid)(values, count, grid, bits, codes);
}
void dequantize(const std::byte* codes, std::size_t count, QuantGrid grid, int bits,
                float* values) {
  HWY_DYNAMIC_DISPATCH(decodeGrid)(codes, count, grid, bits, values);
}

}  // namespace cleave::kernels
#endif  // HWY_ONCE
