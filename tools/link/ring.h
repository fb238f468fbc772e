// A ring buffer for the bytes of one direction of a connection. It grows to the maximum that it has
// held and does not shrink; the writer limits its size.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace cleave::link {

class Ring {
 public:
  using Pieces = std::array<std::span<std::byte>, 2>;  // consecutive; either may be empty

  std::size_t size() const { return size_; }
  // Returns space to write `bytes` bytes; call append() afterwards. Grows if necessary. Invalidates
  // earlier Pieces.
  Pieces space(std::size_t bytes);
  void append(std::size_t bytes) { size_ += bytes; }
  // Returns the first `bytes` bytes. Requires that many.
  Pieces front(std::size_t bytes);
  void dropFront(std::size_t bytes);
  void dropBack(std::size_t bytes) { size_ -= bytes; }

 private:
  Pieces pieces(std::size_t offset, std::size_t bytes);
  void grow(std::size_t min);

  std::vector<std::byte> bytes_;  // its size is 0 or a power of two
  std::size_t begin_ = 0;
  std::size_t size_ = 0;
};

}  // namespace cleave::link
