#include "compression/convert.h"

#include <bit>
#include <cstdint>
#include <cstring>

namespace cleave {
namespace {

constexpr std::uint32_t kSign = 0x80000000;
constexpr std::uint32_t kInfinity = 0x7f800000;

// A choice without a branch, so that the compiler vectorises the loops over the functions below. A
// conditional expression is no such thing: the compiler moves float arithmetic into the branch that
// needs it.
std::uint32_t select(bool condition, std::uint32_t yes, std::uint32_t no) {
  const std::uint32_t mask = -static_cast<std::uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

// The float additions below are exact or round once, as IEEE 754 says, and their results are normal
// or zero: modes that flush subnormals do not change them.

std::uint16_t toHalf(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & ~kSign;
  // From 2^-14: move the exponent's bias from 127 to 15 and round off 13 bits. A carry out of the
  // mantissa is right: it raises the exponent, up to infinity.
  const std::uint32_t odd = (magnitude >> 13) & 1;
  const std::uint32_t normal = (magnitude - ((127 - 15) << 23) + 0xfff + odd) >> 13;
  // Below: next to 0.5, the last bit of an fp32 weighs 2^-24, as that of a half subnormal does; so
  // adding 0.5 rounds.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) -
      std::bit_cast<std::uint32_t>(0.5f);
  const std::uint32_t nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  constexpr std::uint32_t kTwoTo16 = (127 + 16) << 23;
  constexpr std::uint32_t kLeastNormal = (127 - 14) << 23;
  std::uint32_t half = select(magnitude < kLeastNormal, subnormal, normal);
  half = select(magnitude >= kTwoTo16, 0x7c00, half);
  half = select(magnitude > kInfinity, nan, half);
  return static_cast<std::uint16_t>(half | ((bits & kSign) >> 16));
}

float fromHalf(std::uint16_t half) {
  constexpr std::uint32_t kExponent = 0x7c00 << 13;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(half & 0x7fff) << 13;
  const std::uint32_t exponent = magnitude & kExponent;
  const std::uint32_t normal = magnitude + ((127 - 15) << 23);
  // Infinity and NaN: the exponent goes on to fp32's greatest.
  const std::uint32_t special = magnitude | kInfinity;
  // Zero and subnormals: give them the hidden bit that they lack, 2^-14, and subtract it again.
  constexpr std::uint32_t kHidden = (127 - 14) << 23;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(
      std::bit_cast<float>(magnitude + kHidden) - std::bit_cast<float>(kHidden));
  std::uint32_t bits = select(exponent == 0, subnormal, normal);
  bits = select(exponent == kExponent, special, bits);
  return std::bit_cast<float>(bits | (static_cast<std::uint32_t>(half & 0x8000) << 16));
}

std::uint16_t toBf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x40;
  return static_cast<std::uint16_t>(select((bits & ~kSign) > kInfinity, nan, rounded));
}

float fromBf16(std::uint16_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

template <float (*widen)(std::uint16_t)>
void widenAll(const std::byte* __restrict in, std::size_t elements, float* __restrict out) {
  for (std::size_t j = 0; j < elements; ++j) {
    std::uint16_t value;
    std::memcpy(&value, in + 2 * j, 2);
    out[j] = widen(value);
  }
}

template <std::uint16_t (*narrow)(float)>
void narrowAll(const float* __restrict in, std::size_t elements, std::byte* __restrict out) {
  for (std::size_t j = 0; j < elements; ++j) {
    const std::uint16_t value = narrow(in[j]);
    std::memcpy(out + 2 * j, &value, 2);
  }
}

}  // namespace

void toFloat(const std::byte* in, DType dtype, std::size_t elements, float* out) {
  switch (dtype) {
    case DType::f32:
      if (elements > 0) std::memcpy(out, in, elements * sizeof(float));
      return;
    case DType::f16:
      return widenAll<fromHalf>(in, elements, out);
    case DType::bf16:
      return widenAll<fromBf16>(in, elements, out);
  }
}

void fromFloat(const float* in, std::size_t elements, DType dtype, std::byte* out) {
  switch (dtype) {
    case DType::f32:
      if (elements > 0) std::memcpy(out, in, elements * sizeof(float));
      return;
    case DType::f16:
      return narrowAll<toHalf>(in, elements, out);
    case DType::bf16:
      return narrowAll<toBf16>(in, elements, out);
  }
}

}  // namespace cleave
