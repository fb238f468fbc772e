// The bytes of one direction of a connection: written at its end, read at its begin, without being
// moved. It grows to the most it has held and shrinks with its end; who writes bounds it.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace cleave::link {

class Ring {
 public:
  using Pieces = std::array<std::span<std::byte>, 2>;  // one after the other; either may be empty

  std::size_t size() const { return size_; }
  // Where to write `bytes` bytes, which are then to be appended; makes room. Invalidates pieces.
  Pieces space(std::size_t bytes);
  void append(std::size_t bytes) { size_ += bytes; }
  // The first `bytes` bytes, of at least so many.
  Pieces front(std::size_t bytes);
  void dropFront(std::size_t bytes);
  void dropBack(std::size_t bytes) { size_ -= bytes; }

 private:
  Pieces pieces(std::size_t offset, std::size_t bytes);
  void grow(std::size_t least);

  std::vector<std::byte> bytes_;  // its size is 0 or a power of two
  std::size_t begin_ = 0;
  std::size_t size_ = 0;
};

}  // namespace cleave::link
