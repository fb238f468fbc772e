// One grid for all values.
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

void encodeGrid(const float* values, std::size_t count, Grid grid, int bits, std::byte* codes) {
  plain::quantize(values, count, grid, bits, codes);
}
void decodeGrid(const std::byte* codes, std::size_t count, Grid grid, int bits, float* values) {
  plain::dequantize(codes, count, grid, bits, values);
}

#else

namespace {

constexpr std::size_t kRun = 2048;  // values whose codes wait in the first-level cache to be packed

template <typename Code>
HWY_INLINE void quantizeRun(const float* values, std::size_t count, Grid grid, float top,
                            Code* codes) {
  const Floats d = kFloats;
  const auto min = hn::Set(d, grid.min);
  const auto step = hn::Set(d, grid.step);
  const auto most = hn::Set(d, top);
  const auto noFraction = hn::Set(d, kNoFraction);
  const auto take = [&](const float* in, Code* out) HWY_ATTR {
    const auto exact = hn::Div(hn::Sub(hn::LoadU(d, in), min), step);
    storeCodes(hn::Add(hn::Min(exact, most), noFraction), out);
  };
  std::size_t j = 0;
  for (; j + kLanes <= count; j += kLanes) take(values + j, codes + j);
  if (j == count) return;
  float padded[kLanes] = {};
  Code few[kLanes];
  std::memcpy(padded, values + j, (count - j) * sizeof(float));
  take(padded, few);
  std::memcpy(codes + j, few, (count - j) * sizeof(Code));
}

template <typename Code>
HWY_INLINE void quantizeAll(const float* values, std::size_t count, Grid grid, int bits,
                            std::byte* out) {
  const auto top = static_cast<float>((1 << bits) - 1);
  if (bits == 8 * static_cast<int>(sizeof(Code)))
    return quantizeRun(values, count, grid, top, reinterpret_cast<Code*>(out));
  alignas(64) Code codes[kRun];
  for (std::size_t start = 0; start < count; start += kRun) {
    const std::size_t here = count - start < kRun ? count - start : kRun;
    quantizeRun(values + start, here, grid, top, codes);
    packCodes(codes, here, bits, out + packedBytes(start, bits));
  }
}

template <class AnyUnpacker, class D>
HWY_INLINE void dequantizeAll(D d, const std::byte* codes, std::size_t count, Grid grid, int bits,
                              float* values) {
  const AnyUnpacker unpacker(bits);
  const std::size_t bytes = packedBytes(count, bits);
  std::size_t steps = count / AnyUnpacker::kStep;
  // A step may read bytes behind its own; the last few then go one by one.
  while (steps > 0 && (steps - 1) * unpacker.stepBytes + AnyUnpacker::kReads > bytes) --steps;
  dequantizeSteps<false>(d, unpacker, codes, steps, grid, 0, values);
  const std::size_t done = steps * AnyUnpacker::kStep;
  plain::dequantize(codes + steps * unpacker.stepBytes, count - done, grid, bits, values + done);
}

}  // namespace

void encodeGrid(const float* values, std::size_t count, Grid grid, int bits, std::byte* codes) {
  if (bits <= 8) return quantizeAll<std::uint8_t>(values, count, grid, bits, codes);
  quantizeAll<std::uint16_t>(values, count, grid, bits, codes);
}

void decodeGrid(const std::byte* codes, std::size_t count, Grid grid, int bits, float* values) {
  // Of more than 8 bits, 16 bytes hold 8 codes.
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

void quantize(const float* values, std::size_t count, Grid grid, int bits, std::byte* codes) {
  HWY_DYNAMIC_DISPATCH(encodeGrid)(values, count, grid, bits, codes);
}
void dequantize(const std::byte* codes, std::size_t count, Grid grid, int bits, float* values) {
  HWY_DYNAMIC_DISPATCH(decodeGrid)(codes, count, grid, bits, values);
}

}  // namespace cleave::kernels
#endif  // HWY_ONCE
