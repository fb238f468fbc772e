// Pooled byte buffers for messages and tensors. Every buffer starts on a 64-byte boundary, because
// a linear layer gives slightly different results on memory that is misaligned by 4 or 12 bytes.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "common/resources/memory_account.h"

namespace cleave {

inline constexpr std::size_t kAlignment = 64;

namespace detail {
struct PoolState;
}

// Owns size() bytes and returns them to its pool when destroyed, even if the BufferPool object is
// gone. Contents are not initialised. Move-only. While it exists, its memory is charged to the
// pool's account, if the pool has one.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<std::byte> span() { return {data_, size_}; }
  std::span<const std::byte> span() const { return {data_, size_}; }
  // Drops the bytes from `size` on; the capacity stays. Requires size <= size().
  void shrink(std::size_t size);

 private:
  friend class BufferPool;
  Buffer(std::shared_ptr<detail::PoolState> pool, MemoryCharge charge, std::byte* data,
         std::size_t size, std::size_t capacity)
      : pool_(std::move(pool)),
        charge_(std::move(charge)),
        data_(data),
        size_(size),
        capacity_(capacity) {}
  void release() noexcept;

  std::shared_ptr<detail::PoolState> pool_;
  MemoryCharge charge_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

// The source of a pool's memory. Blocks are aligned to kAlignment. Any thread.
class BufferMemory {
 public:
  virtual ~BufferMemory() = default;
  virtual std::byte* allocate(std::size_t size) = 0;  // throws std::bad_alloc
  virtual void release(std::byte* block) noexcept = 0;
};

// Keeps freed buffers, at most maxRetained bytes of them, for the next request of a similar size.
// Any thread.
class BufferPool {
 public:
  static constexpr std::size_t kMaxRetained = std::size_t{512} << 20;

  // If `memory` is null, the pool uses the heap.
  explicit BufferPool(std::size_t maxRetained = kMaxRetained,
                      std::shared_ptr<BufferMemory> memory = nullptr);

  // A pool that shares this one's memory, and charges its buffers to `account`.
  std::shared_ptr<BufferPool> chargedTo(std::shared_ptr<MemoryAccount> account) const;

  // Throws std::bad_alloc, and the errors of MemoryAccount::charge(). The caller must ensure that
  // `size` is within the limits agreed with the peer.
  Buffer acquire(std::size_t size);
  // The capacity, in bytes, that a buffer of `size` bytes occupies and is charged for. Sizes are
  // rounded up so that similar requests can share buffers. Above 256 bytes, rounding adds at most a
  // quarter.
  static std::size_t capacityFor(std::size_t size);
  // Frees all retained buffers.
  void clear();
  std::size_t retainedBytes() const;

 private:
  BufferPool(std::shared_ptr<detail::PoolState> state, std::shared_ptr<MemoryAccount> account)
      : state_(std::move(state)), account_(std::move(account)) {}

  std::shared_ptr<detail::PoolState> state_;
  std::shared_ptr<MemoryAccount> account_;  // null: nothing is charged
};

}  // namespace cleave
