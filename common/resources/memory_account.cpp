#include "common/resources/memory_account.h"

#include <cassert>

#include "common/core/error.h"
#include "common/core/units.h"

namespace cleave {

void MemoryAccount::charge(std::size_t bytes) {
  std::size_t used = used_;
  do {
    assert(used <= limit_);
    if (bytes > limit_ - used) {
      throw ProtocolError("memory-exceeded", "the session holds " + mebibytesText(used) +
                                                 " and would need " + mebibytesText(bytes) +
                                                 " more; it was admitted with " +
                                                 mebibytesText(limit_));
    }
  } while (!used_.compare_exchange_weak(used, used + bytes));
}

MemoryCharge::MemoryCharge(std::shared_ptr<MemoryAccount> account, std::size_t bytes)
    : account_(std::move(account)), bytes_(bytes) {
  if (account_) account_->charge(bytes_);
}

}  // namespace cleave
