// The memory that one session holds, in bytes, and its limit. Memory that outlives the function
// allocating it is charged before the allocation, and released when it is freed. Any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

namespace cleave {

class MemoryAccount {
 public:
  explicit MemoryAccount(std::size_t limit) : limit_(limit) {}

  // Throws ProtocolError "memory-exceeded", and charges nothing, if the limit would be exceeded. A
  // peer that follows the protocol never causes this, because its credits cover less than the
  // limit.
  void charge(std::size_t bytes);
  void release(std::size_t bytes) noexcept { used_ -= bytes; }
  // Raises the limit by memory that was admitted outside of the account, for a use that has ended.
  void raiseLimit(std::size_t bytes) { limit_ += bytes; }

  std::size_t limit() const { return limit_; }
  std::size_t used() const { return used_; }

 private:
  std::atomic<std::size_t> limit_;
  std::atomic<std::size_t> used_ = 0;
};

// A charge to an account, in bytes, released when this is destroyed. Move-only.
class MemoryCharge {
 public:
  MemoryCharge() = default;
  // Throws the errors of MemoryAccount::charge(). A null account charges nothing.
  MemoryCharge(std::shared_ptr<MemoryAccount> account, std::size_t bytes);
  MemoryCharge(MemoryCharge&& other) noexcept
      : account_(std::move(other.account_)), bytes_(std::exchange(other.bytes_, 0)) {}
  MemoryCharge& operator=(MemoryCharge&& other) noexcept {
    std::swap(account_, other.account_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MemoryCharge() {
    if (account_) account_->release(bytes_);
  }

 private:
  std::shared_ptr<MemoryAccount> account_;
  std::size_t bytes_ = 0;
};

}  // namespace cleave
