#include "compression/parts/look_up.h"

#include <algorithm>
#include <array>

#include "compression/parts/packing.h"
#include "compression/parts/payload.h"

namespace cleave {

void lookUp(const CodecContext& context, const std::byte* in, int bits,
            std::span<const float> table, MutableTensorView out) {
  if (bits > 8) {
    makeEachStrip(context, out, [&](std::size_t start, std::size_t count, float* values) {
      alignas(64) std::array<std::uint16_t, kStripElements> codes;
      unpack(in + packedBytes(start, bits), count, bits, codes.data());
      for (std::size_t j = 0; j < count; ++j) values[j] = table[codes[j]];
    });
    return;
  }
  alignas(64) std::array<float, 256> padded{};
  static_assert(padded.size() >= kernels::kMinTable);
  std::copy(table.begin(), table.end(), padded.begin());
  makeEachStrip(context, out, [&](std::size_t start, std::size_t count, float* values) {
    std::array<std::uint8_t, kStripElements> scratch;
    kernels::lookUp(bytesOfCodes(in, start, count, bits, scratch), count, bits, padded.data(),
                    values);
  });
}

const std::uint8_t* bytesOfCodes(const std::byte* in, std::size_t start, std::size_t count,
                                 int bits, std::array<std::uint8_t, kStripElements>& scratch) {
  const std::byte* const packed = in + packedBytes(start, bits);
  if (bits == 8) return reinterpret_cast<const std::uint8_t*>(packed);
  unpack(packed, count, bits, scratch.data());
  return scratch.data();
}

}  // namespace cleave
