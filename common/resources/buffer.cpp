#include "common/resources/buffer.h"

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
  PoolState(std::size_t max, std::shared_ptr<BufferMemory> from)
      : maxRetained(max), memory(std::move(from)) {}
  ~PoolState() { releaseAll(free); }

  using Blocks = std::map<std::size_t, std::vector<std::byte*>>;  // by capacity
  void releaseAll(const Blocks& blocks) {
    for (const auto& [capacity, same] : blocks) {
      for (std::byte* block : same) memory->release(block);
    }
  }

  const std::size_t maxRetained;
  const std::shared_ptr<BufferMemory> memory;
  std::mutex mutex;
  std::size_t retained = 0;
  Blocks free;
};

}  // namespace detail

namespace {

class Heap : public BufferMemory {
 public:
  std::byte* allocate(std::size_t size) override {
    return static_cast<std::byte*>(::operator new (size, std::align_val_t{kAlignment}));
  }
  void release(std::byte* block) noexcept override {
    ::operator delete (block, std::align_val_t{kAlignment});
  }
};

}  // namespace

Buffer::Buffer(Buffer&& other) noexcept
    : pool_(std::move(other.pool_)),
      charge_(std::move(other.charge_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      capacity_(std::exchange(other.capacity_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    release();
    pool_ = std::move(other.pool_);
    charge_ = std::move(other.charge_);
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
        assert(pool_->retained <= pool_->maxRetained);
        data_ = nullptr;
      } catch (const std::bad_alloc&) {
        // Out of memory for the list entry: the block is freed below.
      }
    }
  }
  if (data_ != nullptr) pool_->memory->release(data_);
  data_ = nullptr;
  charge_ = {};
  pool_.reset();
}

BufferPool::BufferPool(std::size_t maxRetained, std::shared_ptr<BufferMemory> memory)
    : state_(std::make_shared<detail::PoolState>(
          maxRetained, memory ? std::move(memory) : std::make_shared<Heap>())) {}

std::shared_ptr<BufferPool> BufferPool::chargedTo(std::shared_ptr<MemoryAccount> account) const {
  return std::shared_ptr<BufferPool>(new BufferPool(state_, std::move(account)));
}

// Four sizes per octave.
std::size_t BufferPool::capacityFor(std::size_t size) {
  if (size <= 4 * kAlignment) return 4 * kAlignment;
  const std::size_t step = std::bit_floor(size - 1) / 4;
  return (size + step - 1) / step * step;
}

Buffer BufferPool::acquire(std::size_t size) {
  const std::size_t capacity = capacityFor(size);
  assert(capacity >= size);
  MemoryCharge charge(account_, capacity);
  {
    const std::lock_guard lock(state_->mutex);
    const auto found = state_->free.find(capacity);
    if (found != state_->free.end() && !found->second.empty()) {
      std::byte* block = found->second.back();
      found->second.pop_back();
      assert(state_->retained >= capacity);
      state_->retained -= capacity;
      return Buffer(state_, std::move(charge), block, size, capacity);
    }
  }
  return Buffer(state_, std::move(charge), state_->memory->allocate(capacity), size, capacity);
}

void BufferPool::clear() {
  detail::PoolState::Blocks blocks;
  {
    const std::lock_guard lock(state_->mutex);
    blocks.swap(state_->free);
    state_->retained = 0;
  }
  state_->releaseAll(blocks);  // without the lock, because it can take a long time
}

std::size_t BufferPool::retainedBytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->retained;
}

}  // namespace cleave
