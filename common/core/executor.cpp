#include "common/core/executor.h"

#include <chrono>
#include <utility>

#include "common/core/clock.h"

namespace cleave {

void DeviceExecutor::attach(std::shared_ptr<DeviceWorker> worker, const std::string& owner) {
  const std::lock_guard lock(mutex_);
  workers_.emplace(shares_.add(owner), std::move(worker));
  notified_ = true;
  changed_.notify_all();
}

void DeviceExecutor::detach(const std::shared_ptr<DeviceWorker>& worker) {
  std::vector<std::shared_ptr<DeviceWorker>> detached;  // destroyed without the lock: a worker's
                                                        // destructor may wait for its device
  const std::lock_guard lock(mutex_);
  for (auto entry = workers_.begin(); entry != workers_.end();) {
    if (entry->second != worker) {
      ++entry;
      continue;
    }
    if (entry->first == running_) {
      runningHasLeft_ = true;
    } else {
      shares_.remove(entry->first);
    }
    detached.push_back(std::move(entry->second));
    entry = workers_.erase(entry);
  }
  notified_ = true;  // workers held back for this one may now run
  changed_.notify_all();
}

void DeviceExecutor::notify() {
  const std::lock_guard lock(mutex_);
  notified_ = true;
  changed_.notify_all();
}

void DeviceExecutor::post(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  notified_ = true;
  changed_.notify_all();
}

void DeviceExecutor::runUntil(const std::function<bool()>& done) {
  while (!done()) {
    std::vector<std::function<void()>> tasks;
    {
      const std::lock_guard lock(mutex_);
      tasks.swap(tasks_);
      notified_ = false;
    }
    for (auto& task : tasks) task();
    if (!tasks.empty() || runOneWorker()) continue;
    waitForWork();
  }
}

bool DeviceExecutor::runOneWorker() {
  std::vector<std::pair<FairShares::User, std::shared_ptr<DeviceWorker>>> order;
  {
    const std::lock_guard lock(mutex_);
    for (const FairShares::User user : shares_.order()) order.emplace_back(user, workers_.at(user));
  }
  for (const auto& [user, worker] : order) {
    if (!begin(user)) continue;
    const SteadyTime start = now();
    const bool hasRun = worker->runOne();
    const double seconds = secondsSince(start);
    const std::lock_guard lock(mutex_);
    if (hasRun) shares_.used(user, seconds, worker->hasOpenStep());
    running_.reset();
    if (std::exchange(runningHasLeft_, false)) shares_.remove(user);
    if (hasRun) return true;
  }
  return false;
}

// Returns false if the worker was detached.
bool DeviceExecutor::begin(FairShares::User user) {
  const std::lock_guard lock(mutex_);
  if (!workers_.contains(user)) return false;
  running_ = user;
  return true;
}

// Waits until a worker may have work, or until one that is held back may run.
void DeviceExecutor::waitForWork() {
  std::unique_lock lock(mutex_);
  const SteadyTime start = now();
  const auto hasNews = [this] { return notified_; };
  if (const auto held = shares_.heldFor()) {
    changed_.wait_for(lock, std::chrono::duration<double>(*held), hasNews);
  } else {
    changed_.wait(lock, hasNews);
  }
  shares_.idled(secondsSince(start));
}

}  // namespace cleave
