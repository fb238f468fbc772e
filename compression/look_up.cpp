#include "compression/look_up.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "compression/convert.h"
#include "compression/packing.h"
#include "compression/payload.h"

namespace cleave {
namespace {

constexpr std::size_t kGroup = 8;

// Two values make one store.
void storePair(float first, float second, std::byte* out) {
  const std::uint64_t pair = std::bit_cast<std::uint32_t>(first) |
                             std::uint64_t{std::bit_cast<std::uint32_t>(second)} << 32;
  std::memcpy(out, &pair, sizeof pair);
}

void lookUpBlock(const std::uint8_t* codes, std::size_t count, const float* table, std::byte* out) {
  std::size_t j = 0;
  for (; j + kGroup <= count; j += kGroup) {
    std::uint64_t group = 0;
    std::memcpy(&group, codes + j, kGroup);
    for (std::size_t pair = 0; pair < kGroup / 2; ++pair) {
      const auto two = static_cast<std::uint32_t>(group >> 16 * pair);
      storePair(table[two & 0xff], table[two >> 8 & 0xff], out + (j + 2 * pair) * sizeof(float));
    }
  }
  for (; j < count; ++j) putFloat(out + j * sizeof(float), table[codes[j]]);
}

void lookUpBlock(const std::uint16_t* codes, std::size_t count, const float* table,
                 std::byte* out) {
  for (std::size_t j = 0; j < count; ++j) putFloat(out + j * sizeof(float), table[codes[j]]);
}

template <typename Code>
void lookUpAll(const std::byte* in, int bits, const float* table, MutableTensorView out) {
  const std::size_t elements = out.spec.elements();
  const DType dtype = out.spec.dtype;
  alignas(64) std::array<Code, kBlockElements> scratch;
  alignas(64) std::array<float, kBlockElements> values;
  for (std::size_t start = 0; start < elements; start += kBlockElements) {
    const std::size_t count = std::min(kBlockElements, elements - start);
    const std::byte* const packed = in + packedBytes(start, bits);
    std::byte* const to = out.data + start * dtypeBytes(dtype);
    const Code* codes = scratch.data();
    if (bits == 8 && sizeof(Code) == 1) {
      codes = reinterpret_cast<const Code*>(packed);
    } else {
      unpack(packed, count, bits, scratch.data());
    }
    if (dtype == DType::f32) {
      lookUpBlock(codes, count, table, to);
    } else {
      lookUpBlock(codes, count, table, reinterpret_cast<std::byte*>(values.data()));
      fromFloat(values.data(), count, dtype, to);
    }
  }
}

}  // namespace

void lookUp(const std::byte* in, int bits, std::span<const float> table, MutableTensorView out) {
  if (bits <= 8) {
    lookUpAll<std::uint8_t>(in, bits, table.data(), out);
  } else {
    lookUpAll<std::uint16_t>(in, bits, table.data(), out);
  }
}

}  // namespace cleave
