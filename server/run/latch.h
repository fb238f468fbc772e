// Lets a coroutine of the io thread wait for what ends on other threads.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

namespace cleave {

// Something that happens once. Any thread.
class Latch {
 public:
  // Only the first call has an effect.
  void open() {
    std::function<void()> then;
    {
      const std::lock_guard lock(mutex_);
      isOpen_ = true;
      then = std::exchange(then_, nullptr);
    }
    if (then) then();
  }
  bool isOpen() const {
    const std::lock_guard lock(mutex_);
    return isOpen_;
  }
  // Calls `then` when the latch opens, on the thread that opens it, or now if it is open. Replaces
  // the function of an earlier call.
  void whenOpen(std::function<void()> then) {
    {
      const std::lock_guard lock(mutex_);
      if (!isOpen_) {
        then_ = std::move(then);
        return;
      }
    }
    then();
  }

 private:
  mutable std::mutex mutex_;
  bool isOpen_ = false;
  std::function<void()> then_;
};

// Opens the latch when its last copy is destroyed.
inline std::shared_ptr<const void> openedByLast(std::shared_ptr<Latch> latch) {
  return {nullptr, [latch = std::move(latch)](std::nullptr_t) { latch->open(); }};
}

}  // namespace cleave
