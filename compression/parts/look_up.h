// Decoding by a table that has the value of each code.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "common/codec/codec.h"
#include "compression/parts/strips.h"

namespace cleave {

// Writes all of `out`: element j is table[code j]. The codes are packed at `in` with `bits` each,
// 1…16. The table has 2^bits values.
void lookUp(const CodecContext& context, const std::byte* in, int bits,
            std::span<const float> table, MutableTensorView out);

// Unpacks `count` codes of at most 8 bits, starting at code `start` of those packed at `in`, to a
// byte each. Returns `in`'s own memory if they have 8 bits, otherwise `scratch`.
const std::uint8_t* bytesOfCodes(const std::byte* in, std::size_t start, std::size_t count,
                                 int bits, std::array<std::uint8_t, kStripElements>& scratch);

}  // namespace cleave
