// Memory that the server and a stage's process both map: one piece for each direction. Its writer
// cannot make the reader's mapping invalid, because its size is sealed.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <span>

#include "common/core/open_file.h"
#include "common/resources/buffer.h"

namespace cleave {

// A file in memory of a fixed size. Its pages are allocated when they are first touched.
class SharedMemory {
 public:
  // `peerWrites`: whether a process that gets the descriptor may write. Throws std::system_error.
  static SharedMemory create(std::size_t size, bool peerWrites);
  // Maps a descriptor from the process that has created it. Throws std::system_error.
  static SharedMemory open(OpenFile file, std::size_t size, bool writes);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;
  ~SharedMemory();

  int file() const { return file_.get(); }
  void closeFile() { file_ = OpenFile(); }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  SharedMemory(OpenFile file, std::span<std::byte> bytes);

  OpenFile file_;
  std::span<std::byte> bytes_;
};

// Blocks of a shared memory for buffers of the process that has created it. Blocks for which it has
// no room come from the heap. Any thread.
class SharedBlocks : public BufferMemory {
 public:
  explicit SharedBlocks(SharedMemory memory);
  ~SharedBlocks() override;

  std::byte* allocate(std::size_t size) override;
  void release(std::byte* block) noexcept override;

  const SharedMemory& memory() const { return memory_; }
  // Returns the pages of free blocks to the system.
  void returnFree();
  // Whether these bytes lie in the shared memory.
  bool contains(const std::byte* bytes) const;
  std::size_t offsetOf(const std::byte* bytes) const;  // requires contains(bytes)

 private:
  SharedMemory memory_;
  std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_, used_;  // sizes by offset; adjacent free ones are one
};

}  // namespace cleave
