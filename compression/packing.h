// Codes of 1…16 bits as a dense stream: the first code in the lowest bits of the first byte; the
// last byte is filled up with zeros. Memory needs no alignment.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cleave {

// Writes (count * bits + 7) / 8 bytes. Codes are below 2^bits. Of codes in bytes, 1…8 bits.
void pack(const std::uint8_t* codes, std::size_t count, int bits, std::byte* out);
void pack(const std::uint16_t* codes, std::size_t count, int bits, std::byte* out);
// Reads (count * bits + 7) / 8 bytes.
void unpack(const std::byte* in, std::size_t count, int bits, std::uint8_t* codes);
void unpack(const std::byte* in, std::size_t count, int bits, std::uint16_t* codes);

}  // namespace cleave
