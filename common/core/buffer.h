// Pooled byte buffers for the wire and for tensors. Every buffer starts on a 64-byte boundary: a
// linear layer on memory 4 or 12 bytes off gives other bits.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "common/core/memory_account.h"

namespace cleave {

inline constexpr std::size_t kAlignment = 64;

namespace detail {
struct PoolState;
}

// Owns size() bytes; gives them back to its pool when destroyed, also after the pool is gone.
// Contents are not initialised. Move-only. Its memory is charged to the pool's account, if it has
// one, for as long as the buffer exists.
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
  // Forgets the bytes from `size` on. Requires size <= size().
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

// Where a pool's memory comes from. Blocks start on a boundary of kAlignment. Any thread.
class BufferMemory {
 public:
  virtual ~BufferMemory() = default;
  virtual std::byte* allocate(std::size_t size) = 0;  // throws std::bad_alloc
  virtual void release(std::byte* block) noexcept = 0;
};

// Keeps freed buffers for the next request of a similar size, at most maxRetained bytes of them.
// Any thread.
class BufferPool {
 public:
  static constexpr std::size_t kMaxRetained = std::size_t{512} << 20;

  // Without `memory`: the heap.
  explicit BufferPool(std::size_t maxRetained = kMaxRetained,
                      std::shared_ptr<BufferMemory> memory = nullptr);

  // The same pool, whose buffers are charged to `account`.
  std::shared_ptr<BufferPool> chargedTo(std::shared_ptr<MemoryAccount> account) const;

  // Throws std::bad_alloc, and as MemoryAccount::charge() does. The caller has checked `size`
  // against what was agreed with the peer.
  Buffer acquire(std::size_t size);
  // What a buffer of so many bytes takes, and is charged: sizes are rounded up, so that similar
  // requests share buffers; by a quarter at most above 256 bytes.
  static std::size_t capacityFor(std::size_t size);
  // Frees all that is kept.
  void clear();
  std::size_t retainedBytes() const;

 private:
  BufferPool(std::shared_ptr<detail::PoolState> state, std::shared_ptr<MemoryAccount> account)
      : state_(std::move(state)), account_(std::move(account)) {}

  std::shared_ptr<detail::PoolState> state_;
  std::shared_ptr<MemoryAccount> account_;  // null: nothing is charged
};

}  // namespace cleave
