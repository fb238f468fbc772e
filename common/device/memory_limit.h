// Limits the host memory that LibTorch allocates for one run's tensors.
#pragma once

#include <cstddef>
#include <memory>

namespace cleave {

class MemoryLimit {
 public:
  // Call before the process uses LibTorch: replaces its allocator of host memory.
  static void install();

  explicit MemoryLimit(std::size_t bytes);

  // While a scope exists, memory that LibTorch allocates on this thread counts against the limit,
  // until it is freed on any thread. An allocation that would exceed the limit throws RunError
  // "memory-exceeded" instead. Scopes on one thread must not overlap.
  class Scope {
   public:
    explicit Scope(const MemoryLimit& limit);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };

  std::size_t used() const;

 private:
  friend class LimitedAllocator;
  struct Account;
  std::shared_ptr<Account> account_;
};

}  // namespace cleave
