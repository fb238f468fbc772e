#include "common/device/memory_limit.h"

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstddef>
#include <new>
#include <utility>

#include "common/core/error.h"
#include "common/core/units.h"

namespace cleave {

struct MemoryLimit::Account {
  explicit Account(std::size_t limitBytes) : limit(limitBytes) {}
  const std::size_t limit;
  std::atomic<std::size_t> used = 0;
};

// Forwards to LibTorch's allocator, and counts allocations within scopes. Each allocation has a
// header in front of it, because LibTorch may free memory by its address alone, without DataPtr's
// context.
class LimitedAllocator : public c10::Allocator {
 public:
  explicit LimitedAllocator(c10::Allocator* own) : own_(own) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &free, at::kCPU};
    if (current) count(bytes);
    c10::DataPtr memory;
    try {
      memory = own_->allocate(bytes + kHeaderBytes);
    } catch (...) {
      if (current) current->used -= bytes;
      throw;
    }
    auto* const begin = static_cast<std::byte*>(memory.get());
    new (begin) Header{std::move(memory), current, bytes};
    std::byte* const data = begin + kHeaderBytes;
    return {data, data, &free, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    own_->copy_data(dest, src, count);
  }

  static thread_local std::shared_ptr<MemoryLimit::Account> current;

 private:
  struct Header {
    c10::DataPtr memory;
    std::shared_ptr<MemoryLimit::Account> account;
    std::size_t bytes = 0;
  };
  static constexpr std::size_t kHeaderBytes = 64;  // preserves LibTorch's alignment
  static_assert(sizeof(Header) <= kHeaderBytes);

  static void count(std::size_t bytes) {
    MemoryLimit::Account& account = *current;
    const std::size_t before = account.used.fetch_add(bytes);
    if (bytes <= account.limit && before <= account.limit - bytes) return;
    account.used -= bytes;
    throw RunError("memory-exceeded",
                   "the operators of the model need more than the " + mebibytesText(account.limit) +
                       " that the run may use on this server",
                   "use a smaller batch, or more micro-batches with fewer in flight");
  }

  static void free(void* data) {
    if (data == nullptr) return;
    auto* const header = reinterpret_cast<Header*>(static_cast<std::byte*>(data) - kHeaderBytes);
    if (header->account) header->account->used -= header->bytes;
    const Header kept = std::move(*header);  // frees the memory after the header's destructor
    header->~Header();
  }

  c10::Allocator* const own_;
};

thread_local std::shared_ptr<MemoryLimit::Account> LimitedAllocator::current;

void MemoryLimit::install() {
  // Never freed: tensors may outlive everything else.
  static auto* const allocator = new LimitedAllocator(c10::GetCPUAllocator());
  constexpr std::uint8_t kAboveDefault = 1;
  c10::SetCPUAllocator(allocator, kAboveDefault);
}

MemoryLimit::MemoryLimit(std::size_t bytes) : account_(std::make_shared<Account>(bytes)) {}

std::size_t MemoryLimit::used() const { return account_->used; }

MemoryLimit::Scope::Scope(const MemoryLimit& limit) { LimitedAllocator::current = limit.account_; }
MemoryLimit::Scope::~Scope() { LimitedAllocator::current.reset(); }

}  // namespace cleave
