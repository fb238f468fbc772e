#include "common/core/buffer.h"

#include <bit>
#include <cassert>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace cleave {
namespace detail {

struct PoolState {
  explicit PoolState(std::size_t most) : maxRetained(most) {}
  ~PoolState() {
    for (auto& [capacity, blocks] : free) {
      for (std::byte* block : blocks) ::operator delete (block, std::align_val_t{kAlignment});
    }
  }

  const std::size_t maxRetained;
  std::mutex mutex;
  std::size_t retained = 0;
  std::map<std::size_t, std::vector<std::byte*>> free;  // by capacity
};

}  // namespace detail

namespace {

// Sizes are rounded up to four steps an octave, so that requests of similar size share buffers and
// at most a quarter of one is unused.
std::size_t capacityFor(std::size_t size) {
  if (size <= 4 * kAlignment) return 4 * kAlignment;
  const std::size_t step = std::bit_floor(size - 1) / 4;
  return (size + step - 1) / step * step;
}

}  // namespace

Buffer::Buffer(Buffer&& other) noexcept
    : pool_(std::move(other.pool_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      capacity_(std::exchange(other.capacity_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    release();
    pool_ = std::move(other.pool_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, 0);
  }
  return *this;
}

Buffer::~Buffer() { release(); }

void Buffer::shrink(std::size_t size) {
  assert(size <= size_);
  size_ = size;
}

void Buffer::release() noexcept {
  if (data_ == nullptr) return;
  {
    const std::lock_guard lock(pool_->mutex);
    if (pool_->retained + capacity_ <= pool_->maxRetained) {
      try {
        pool_->free[capacity_].push_back(data_);
        pool_->retained += capacity_;
        data_ = nullptr;
      } catch (const std::bad_alloc&) {
        // No memory to remember it by: it is freed below.
      }
    }
  }
  if (data_ != nullptr) ::operator delete (data_, std::align_val_t{kAlignment});
  data_ = nullptr;
  pool_.reset();
}

BufferPool::BufferPool(std::size_t maxRetained)
    : state_(std::make_shared<detail::PoolState>(maxRetained)) {}

Buffer BufferPool::acquire(std::size_t size) {
  const std::size_t capacity = capacityFor(size);
  {
    const std::lock_guard lock(state_->mutex);
    const auto found = state_->free.find(capacity);
    if (found != state_->free.end() && !found->second.empty()) {
      std::byte* block = found->second.back();
      found->second.pop_back();
      state_->retained -= capacity;
      return Buffer(state_, block, size, capacity);
    }
  }
  auto* block = static_cast<std::byte*>(::operator new (capacity, std::align_val_t{kAlignment}));
  return Buffer(state_, block, size, capacity);
}

std::size_t BufferPool::retainedBytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->retained;
}

}  // namespace cleave
