#include "tools/link/ring.h"

#include <algorithm>
#include <bit>
#include <cassert>

namespace cleave::link {

Ring::Pieces Ring::space(std::size_t bytes) {
  if (size_ + bytes > bytes_.size()) grow(size_ + bytes);
  return pieces(size_, bytes);
}

Ring::Pieces Ring::front(std::size_t bytes) {
  assert(bytes <= size_);
  return pieces(0, bytes);
}

void Ring::dropFront(std::size_t bytes) {
  assert(bytes <= size_);
  size_ -= bytes;
  begin_ = size_ == 0 ? 0 : (begin_ + bytes) & (bytes_.size() - 1);
}

Ring::Pieces Ring::pieces(std::size_t offset, std::size_t bytes) {
  if (bytes == 0) return {};
  const std::size_t begin = (begin_ + offset) & (bytes_.size() - 1);
  const std::size_t first = std::min(bytes, bytes_.size() - begin);
  const std::span<std::byte> all(bytes_);
  return {all.subspan(begin, first), all.first(bytes - first)};
}

void Ring::grow(std::size_t min) {
  constexpr std::size_t kAtFirst = std::size_t{16} << 10;
  std::vector<std::byte> grown(std::max(kAtFirst, std::bit_ceil(min)));
  std::size_t filled = 0;
  for (const auto& piece : pieces(0, size_)) {
    std::copy(piece.begin(), piece.end(), grown.begin() + static_cast<std::ptrdiff_t>(filled));
    filled += piece.size();
  }
  bytes_ = std::move(grown);
  begin_ = 0;
}

}  // namespace cleave::link
