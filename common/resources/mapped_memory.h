// A large block of zeroed memory outside the heap: anonymous, or in an unnamed file, whose pages
// the kernel writes to the disk when memory is short.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace cleave {

class MappedMemory {
 public:
  MappedMemory() = default;
  // `folder`: where the file is, which disappears with this object or the process; empty: anonymous
  // memory, of which only the pages that have been written to are used. The file's disk space is
  // reserved, because a process is killed if a page cannot be written: this remains possible if the
  // disk fails, and on file systems that copy on write. Throws RunError "cannot-write" or
  // "not-enough-memory".
  MappedMemory(std::size_t bytes, const std::string& folder);
  MappedMemory(MappedMemory&& other) noexcept;
  MappedMemory& operator=(MappedMemory&& other) noexcept;
  ~MappedMemory();

  std::span<std::byte> span() { return {data_, size_}; }
  std::span<const std::byte> span() const { return {data_, size_}; }
  bool empty() const { return size_ == 0; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace cleave
