#include "common/resources/fork_join_pair.h"

#include <cassert>
#include <utility>

namespace cleave {
namespace {

std::exception_ptr errorOf(const std::function<void()>& work) {
  try {
    work();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace

ForkJoinPair::ForkJoinPair() : thread_([this] { serve(); }) {}

ForkJoinPair::~ForkJoinPair() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ForkJoinPair::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ending_ || offered_ != nullptr; });
    if (ending_) return;
    const std::function<void()>& work = *std::exchange(offered_, nullptr);
    working_ = true;
    lock.unlock();
    std::exception_ptr error = errorOf(work);
    lock.lock();
    error_ = std::move(error);
    working_ = false;
    changed_.notify_all();
  }
}

void ForkJoinPair::run(const std::function<void()>& first, const std::function<void()>& second) {
  const std::unique_lock caller(caller_, std::try_to_lock);
  if (!caller) {
    first();
    second();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    assert(offered_ == nullptr && !working_);
    error_ = nullptr;
    offered_ = &second;
  }
  changed_.notify_all();
  const std::exception_ptr firstError = errorOf(first);

  std::unique_lock lock(mutex_);
  const bool ours = std::exchange(offered_, nullptr) != nullptr;
  changed_.wait(lock, [&] { return !working_; });
  std::exception_ptr secondError = std::move(error_);
  lock.unlock();
  if (firstError) std::rethrow_exception(firstError);
  if (ours) return second();
  if (secondError) std::rethrow_exception(secondError);
}

std::unique_ptr<ForkJoinPair> makeForkJoinPair() {
  return std::thread::hardware_concurrency() == 1 ? nullptr : std::make_unique<ForkJoinPair>();
}

}  // namespace cleave
