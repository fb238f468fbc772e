#include "compression/parts/packing.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace cleave {
namespace {

// Eight codes make `bits` bytes, so that every group starts at a byte. A group is compacted within
// a 64-bit word: first neighbours are merged, then pairs, then fours.
//
//   0000hhhh 0000gggg … 0000aaaa  ->  hhhhgggg … bbbbaaaa  (bits = 4)
constexpr std::size_t kGroup = 8;

std::uint64_t squeeze(std::uint64_t codes, int bits) {
  constexpr std::uint64_t kOdd = 0xff00ff00ff00ff00;
  constexpr std::uint64_t kOddPairs = 0xffff0000ffff0000;
  codes = (codes & ~kOdd) | (codes & kOdd) >> (8 - bits);
  codes = (codes & ~kOddPairs) | (codes & kOddPairs) >> (16 - 2 * bits);
  return (codes & 0xffffffff) | (codes >> 32) << 4 * bits;
}

std::uint64_t spread(std::uint64_t packed, int bits) {
  const std::uint64_t quad = (std::uint64_t{1} << 4 * bits) - 1;
  std::uint64_t codes = (packed & quad) | (packed >> 4 * bits & quad) << 32;
  const std::uint64_t pair = 0x0000000100000001 * ((std::uint64_t{1} << 2 * bits) - 1);
  codes = (codes & pair) | (codes >> 2 * bits & pair) << 16;
  const std::uint64_t one = 0x0001000100010001 * ((std::uint64_t{1} << bits) - 1);
  return (codes & one) | (codes >> bits & one) << 8;
}

void packGroup(const std::uint8_t* codes, int bits, std::byte* out, std::size_t bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, codes, kGroup);
  word = squeeze(word, bits);
  std::memcpy(out, &word, bytes);
}

void unpackGroup(const std::byte* in, std::size_t bytes, int bits, std::uint8_t* codes) {
  std::uint64_t word = 0;
  std::memcpy(&word, in, bytes);
  word = spread(word, bits);
  std::memcpy(codes, &word, kGroup);
}

// For wider codes: packs two halves of four codes, 4 * bits each.
void packGroup(const std::uint16_t* codes, int bits, std::byte* out, std::size_t bytes) {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  for (int j = 3; j >= 0; --j) low = low << bits | codes[j];
  for (int j = 7; j >= 4; --j) high = high << bits | codes[j];
  const int half = 4 * bits;
  const std::uint64_t first = half == 64 ? low : low | high << half;
  const std::uint64_t second = half == 64 ? high : half > 0 ? high >> (64 - half) : 0;
  std::memcpy(out, &first, std::min<std::size_t>(bytes, 8));
  if (bytes > 8) std::memcpy(out + 8, &second, bytes - 8);
}

void unpackGroup(const std::byte* in, std::size_t bytes, int bits, std::uint16_t* codes) {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  std::memcpy(&first, in, std::min<std::size_t>(bytes, 8));
  if (bytes > 8) std::memcpy(&second, in + 8, bytes - 8);
  const int half = 4 * bits;
  const std::uint64_t high = half == 64 ? second : first >> half | second << (64 - half);
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  for (int j = 0; j < 4; ++j) codes[j] = static_cast<std::uint16_t>(first >> j * bits & mask);
  for (int j = 0; j < 4; ++j) codes[4 + j] = static_cast<std::uint16_t>(high >> j * bits & mask);
}

// The width is a template parameter, so that it is constant in the inner loops.
template <int bits, typename Code>
void packAll(const Code* codes, std::size_t count, std::byte* out) {
  if constexpr (bits == 8 * sizeof(Code)) {
    if (count > 0) std::memcpy(out, codes, count * sizeof(Code));
    return;
  }
  std::size_t j = 0;
  for (; j + kGroup <= count; j += kGroup, out += bits) packGroup(codes + j, bits, out, bits);
  if (j == count) return;
  Code rest[kGroup] = {};
  std::copy(codes + j, codes + count, rest);
  packGroup(rest, bits, out, ((count - j) * bits + 7) / 8);
}

template <int bits, typename Code>
void unpackAll(const std::byte* in, std::size_t count, Code* codes) {
  if constexpr (bits == 8 * sizeof(Code)) {
    if (count > 0) std::memcpy(codes, in, count * sizeof(Code));
    return;
  }
  std::size_t j = 0;
  for (; j + kGroup <= count; j += kGroup, in += bits) unpackGroup(in, bits, bits, codes + j);
  if (j == count) return;
  Code rest[kGroup];
  unpackGroup(in, ((count - j) * bits + 7) / 8, bits, rest);
  std::copy(rest, rest + (count - j), codes + j);
}

// Calls use(integral_constant<int, bits>) for bits in 1…maxBits.
template <int maxBits, typename Use>
void withWidth(int bits, const Use& use) {
  if constexpr (maxBits > 0) {
    if (bits == maxBits) return use(std::integral_constant<int, maxBits>());
    withWidth<maxBits - 1>(bits, use);
  }
}

}  // namespace

void pack(const std::uint8_t* codes, std::size_t count, int bits, std::byte* out) {
  withWidth<8>(bits, [&](auto width) { packAll<width>(codes, count, out); });
}

void pack(const std::uint16_t* codes, std::size_t count, int bits, std::byte* out) {
  withWidth<16>(bits, [&](auto width) { packAll<width>(codes, count, out); });
}

void unpack(const std::byte* in, std::size_t count, int bits, std::uint8_t* codes) {
  withWidth<8>(bits, [&](auto width) { unpackAll<width>(in, count, codes); });
}

void unpack(const std::byte* in, std::size_t count, int bits, std::uint16_t* codes) {
  withWidth<16>(bits, [&](auto width) { unpackAll<width>(in, count, codes); });
}

}  // namespace cleave
