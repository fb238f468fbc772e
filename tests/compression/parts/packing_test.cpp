// Compares packing with every width to packing one bit at a time.
#include "compression/parts/packing.h"

#include <catch2/catch.hpp>
#include <vector>

#include "common/core/random.h"

using namespace cleave;

namespace {

template <typename Code>
void checkWidths(int max) {
  for (int bits = 1; bits <= max; ++bits) {
    for (const std::size_t count : {0, 1, 3, 7, 8, 9, 16, 100, 1024, 1031}) {
      INFO(bits << " bits, " << count << " codes");
      std::vector<Code> codes(count);
      for (std::size_t j = 0; j < count; ++j) {
        codes[j] = static_cast<Code>(randomBits({1, 2}, j) & ((1u << bits) - 1));
      }
      const auto width = static_cast<std::size_t>(bits);
      std::vector<std::byte> expected((count * width + 7) / 8);
      for (std::size_t place = 0; place < count * width; ++place) {
        if (codes[place / width] >> (place % width) & 1) {
          expected[place / 8] |= std::byte{1} << (place % 8);
        }
      }
      std::vector<std::byte> packed(expected.size());
      pack(codes.data(), count, bits, packed.data());
      REQUIRE(packed == expected);
      std::vector<Code> unpacked(count);
      unpack(packed.data(), count, bits, unpacked.data());
      REQUIRE(unpacked == codes);
    }
  }
}

}  // namespace

TEST_CASE("codes stored in one byte survive packing to a bit stream and unpacking") {
  checkWidths<std::uint8_t>(8);
}
TEST_CASE("codes stored in two bytes survive packing to a bit stream and unpacking") {
  checkWidths<std::uint16_t>(16);
}
