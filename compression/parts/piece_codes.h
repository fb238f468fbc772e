// Packed codes of values whose grid differs between pieces of the value range.
#pragma once

#include "compression/kernels/pieces.h"
#include "compression/parts/packing.h"
#include "compression/parts/payload.h"
#include "compression/parts/strips.h"

namespace cleave {

// Writes packedBytes(values.size(), grids.bits + grids.pieceBits) to `out`. Has the same
// requirements as codesOf(); Code is the type of unpacked codes.
template <typename Code>
void packCodes(const CodecContext& context, const FloatReader& values, const PieceGrids& grids,
               std::byte* out) {
  const int bits = grids.bits + grids.pieceBits;
  forEachStrip(context, values, [&](std::size_t start, std::size_t count, const float* strip) {
    alignas(64) std::array<Code, kStripElements> codes;
    codesOf(strip, count, grids, codes.data());
    pack(codes.data(), count, bits, out + packedBytes(start, bits));
  });
}

}  // namespace cleave
