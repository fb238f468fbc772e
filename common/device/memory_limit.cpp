#include "common/device/memory_limit.h"

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <utility>

#include "common/core/error.h"
#include "common/core/units.h"

namespace cleave {

struct MemoryLimit::Account {
  explicit Account(std::size_t most) : limit(most) {}
  const std::size_t limit;
  std::atomic<std::size_t> used = 0;
};

// Passes everything on to LibTorch's allocator, and counts within scopes.
class LimitedAllocator : public c10::Allocator {
 public:
  explicit LimitedAllocator(c10::Allocator* own) : own_(own) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    if (!current) return own_->allocate(bytes);
    const std::size_t before = current->used.fetch_add(bytes);
    if (bytes > current->limit || before > current->limit - bytes) {
      current->used -= bytes;
      throw RunError("memory-exceeded",
                     "the operators of the model need more than the " +
                         mebibytesText(current->limit) + " that the run may use on this server",
                     "use a smaller batch, or more micro-batches with fewer in flight");
    }
    auto counted = std::make_unique<Counted>(Counted{own_->allocate(bytes), current, bytes});
    void* const data = counted->memory.get();
    const c10::Device device = counted->memory.device();
    return {data, counted.release(), &free, device};
  }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    own_->copy_data(dest, src, count);
  }

  static thread_local std::shared_ptr<MemoryLimit::Account> current;

 private:
  struct Counted {
    c10::DataPtr memory;
    std::shared_ptr<MemoryLimit::Account> account;
    std::size_t bytes;
  };
  static void free(void* context) {
    const std::unique_ptr<Counted> counted(static_cast<Counted*>(context));
    counted->account->used -= counted->bytes;
  }

  c10::Allocator* const own_;
};

thread_local std::shared_ptr<MemoryLimit::Account> LimitedAllocator::current;

MemoryLimit::MemoryLimit(std::size_t bytes) : account_(std::make_shared<Account>(bytes)) {
  static LimitedAllocator* const allocator = [] {
    // Never freed: tensors may outlive everything else.
    auto* const limited = new LimitedAllocator(c10::GetCPUAllocator());
    constexpr std::uint8_t kAboveDefault = 1;
    c10::SetCPUAllocator(limited, kAboveDefault);
    return limited;
  }();
  (void)allocator;
}

std::size_t MemoryLimit::used() const { return account_->used; }

MemoryLimit::Scope::Scope(const MemoryLimit& limit) { LimitedAllocator::current = limit.account_; }
MemoryLimit::Scope::~Scope() { LimitedAllocator::current.reset(); }

}  // namespace cleave
