// Memory for tensors in which an access outside of a tensor is a segmentation fault, and a read of
// memory that nobody has written gives chosen bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cleave::test {

// Replaces LibTorch's allocator of host memory in this process. Each tensor has pages of its own;
// the page behind its last byte, or in front of its first one, cannot be accessed.
void installGuardedMemory();

struct GuardedMemory {
  bool guardsFront = false;  // otherwise, the end
  std::uint8_t fill = 0xff;  // of new memory
  std::size_t maxBytes = 0;  // of all tensors together; 0: no limit
};
// For tensors that are made from now on.
void setGuardedMemory(const GuardedMemory& memory);

}  // namespace cleave::test
