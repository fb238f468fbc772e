// Decoding by a table of every code's value.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "common/codec/codec.h"
#include "compression/strips.h"

namespace cleave {

// Writes all of `out`: element j is table[code j], the codes packed at `in` with `bits` each, 1…16.
// The table has 2^bits values.
void lookUp(const CodecContext& context, const std::byte* in, int bits,
            std::span<const float> table, MutableTensorView out);

// `count` codes of at most 8 bits, from code `start` of those packed at `in`, as a byte each: where
// they lie if they have 8 bits, else in `scratch`.
const std::uint8_t* bytesOfCodes(const std::byte* in, std::size_t start, std::size_t count,
                                 int bits, std::array<std::uint8_t, kStripElements>& scratch);

}  // namespace cleave
