// Codes of 1…16 bits as a dense stream: the first code is in the lowest bits of the first byte; the
// last byte is padded with zeros. Memory needs no alignment.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cleave {

// Writes (count * bits + 7) / 8 bytes. Requires codes below 2^bits; codes stored in bytes have 1…8
// bits.
void pack(const std::uint8_t* codes, std::size_t count, int bits, std::byte* out);
void pack(const std::uint16_t* codes, std::size_t count, int bits, std::byte* out);
// Reads (count * bits + 7) / 8 bytes.
void unpack(const std::byte* in, std::size_t count, int bits, std::uint8_t* codes);
void unpack(const std::byte* in, std::size_t count, int bits, std::uint16_t* codes);

}  // namespace cleave
