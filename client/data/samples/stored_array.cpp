#include "client/data/samples/stored_array.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

namespace cleave {
namespace {

template <typename From, typename To>
void convert(const std::byte* from, std::size_t count, std::byte* to) {
  for (std::size_t n = 0; n < count; ++n) {
    From value;
    std::memcpy(&value, from + n * sizeof value, sizeof value);
    // Signed one-byte numbers keep their sign.
    const To converted = static_cast<To>(value);  // NOLINT(bugprone-signed-char-misuse)
    std::memcpy(to + n * sizeof converted, &converted, sizeof converted);
  }
}

// IEEE half precision.
float floatOfHalf(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t{half & 0x8000U} << 16;
  const std::uint32_t exponent = half >> 10 & 0x1FU, fraction = half & 0x3FFU;
  if (exponent == 0) {  // zero and subnormal numbers: multiples of 2^-24
    const float value = std::ldexp(static_cast<float>(fraction), -24);
    return sign != 0 ? -value : value;
  }
  const std::uint32_t wide = exponent == 0x1F ? 0xFF : exponent + (127 - 15);
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

void convertHalf(const std::byte* from, std::size_t count, std::byte* to) {
  for (std::size_t n = 0; n < count; ++n) {
    std::uint16_t half = 0;
    std::memcpy(&half, from + n * sizeof half, sizeof half);
    const float value = floatOfHalf(half);
    std::memcpy(to + n * sizeof value, &value, sizeof value);
  }
}

constexpr std::array<StoredDType, 9> kDTypes = {
    {{"F32", "f4", 4, DType::f32, convert<float, float>},
     {"F64", "f8", 8, DType::f32, convert<double, float>},
     {"F16", "f2", 2, DType::f32, convertHalf},
     {"I64", "i8", 8, DType::i64, convert<std::int64_t, std::int64_t>},
     {"I32", "i4", 4, DType::i64, convert<std::int32_t, std::int64_t>},
     {"I16", "i2", 2, DType::i64, convert<std::int16_t, std::int64_t>},
     {"I8", "i1", 1, DType::i64, convert<std::int8_t, std::int64_t>},
     {"U8", "u1", 1, DType::i64, convert<std::uint8_t, std::int64_t>},
     {"BOOL", "b1", 1, DType::i64, convert<std::uint8_t, std::int64_t>}}};

template <typename Is>
const StoredDType* findDType(const Is& is) {
  const auto found = std::find_if(kDTypes.begin(), kDTypes.end(), is);
  return found == kDTypes.end() ? nullptr : &*found;
}

}  // namespace

const StoredDType* dtypeOfSafetensors(std::string_view name) {
  return findDType([&](const StoredDType& each) { return each.name == name; });
}

const StoredDType* dtypeOfNpy(std::string_view name) {
  return findDType([&](const StoredDType& each) { return each.numpy == name; });
}

ValueRange rangeOf(const StoredArray& array, std::uint32_t sample,
                   std::optional<std::int64_t> ignored) {
  constexpr std::size_t kPiece = 1024;
  std::array<std::int64_t, kPiece> integers{};
  std::array<float, kPiece> floats{};
  ValueRange range;
  const std::byte* from = array.data + sample * array.elements * array.dtype->bytes;
  for (std::size_t done = 0; done < array.elements; done += kPiece) {
    const std::size_t count = std::min(kPiece, array.elements - done);
    const std::byte* piece = from + done * array.dtype->bytes;
    if (array.dtype->as == DType::f32) {
      array.dtype->convert(piece, count, reinterpret_cast<std::byte*>(floats.data()));
      for (std::size_t n = 0; n < count; ++n) range.hasNaN |= std::isnan(floats[n]);
      continue;
    }
    array.dtype->convert(piece, count, reinterpret_cast<std::byte*>(integers.data()));
    for (std::size_t n = 0; n < count; ++n) {
      if (ignored && integers[n] == *ignored) continue;
      range.min = std::min(range.min, integers[n]);
      range.max = std::max(range.max, integers[n]);
    }
  }
  return range;
}

}  // namespace cleave
