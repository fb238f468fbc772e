// The elements of a tensor that a sparsifying codec keeps.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "compression/parts/strips.h"

namespace cleave {

// A set of positions in the tensor's memory order. topk and randtopk store one in a CutContext;
// other codecs do not use CutContexts.
struct Positions {
  std::size_t elements = 0;
  std::size_t kept = 0;
  std::vector<std::uint64_t> words;  // bit j % 64 of word j / 64: element j is kept; no bits beyond
  std::shared_ptr<std::byte> copy_dev;  // a GPU codec's copy on the GPU; null elsewhere

  explicit Positions(std::size_t n = 0) : elements(n), words((n + 63) / 64) {}
  std::size_t bitmapBytes() const { return (elements + 7) / 8; }
  bool has(std::size_t j) const { return words[j / 64] >> (j % 64) & 1; }

  // Calls use(j) for each kept element, ascending.
  template <typename Use>
  void forEach(const Use& use) const {
    for (std::size_t w = 0; w < words.size(); ++w) {
      for (std::uint64_t word = words[w]; word != 0; word &= word - 1) {
        use(w * 64 + static_cast<std::size_t>(std::countr_zero(word)));
      }
    }
  }
};

// Returns the `count` elements of the largest magnitude; among equal magnitudes, the first ones.
// Nullopt if a value is not finite. Requires 1 <= count <= values.size().
std::optional<Positions> largest(const CodecContext& context, const FloatReader& values,
                                 std::size_t count);

// Writes the positions as distances: for each kept element, the number of elements between the
// previous kept one and it (for the first: its position). A distance is in LEB128: 7 bits per byte,
// lowest first, the highest bit set if more bytes follow. Returns the bytes written; 0 if `out` is
// too small.
std::size_t writeDistances(const Positions& positions, std::span<std::byte> out);
// Nullopt unless `bytes` exactly encodes `kept` positions below `elements`.
std::optional<Positions> readDistances(std::span<const std::byte> bytes, std::size_t elements,
                                       std::size_t kept);

void writeBitmap(const Positions& positions, std::byte* out);  // writes bitmapBytes()
// Nullopt unless exactly `kept` bits are set, none of them beyond the elements.
std::optional<Positions> readBitmap(const std::byte* bytes, std::size_t elements, std::size_t kept);

}  // namespace cleave
