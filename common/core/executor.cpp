#include "common/core/executor.h"

#include <algorithm>
#include <utility>

#include "common/core/clock.h"

namespace cleave {

void DeviceExecutor::attach(std::shared_ptr<DeviceWorker> worker) {
  const std::lock_guard lock(mutex_);
  workers_.push_back({std::move(worker), virtualNow_});
  notified_ = true;
  changed_.notify_all();
}

void DeviceExecutor::detach(const std::shared_ptr<DeviceWorker>& worker) {
  std::vector<Entry> detached;  // destroyed unlocked: a worker's end may wait for its device
  const std::lock_guard lock(mutex_);
  for (Entry& entry : workers_) {
    if (entry.worker == worker) detached.push_back(std::exchange(entry, {}));
  }
  std::erase_if(workers_, [](const Entry& entry) { return entry.worker == nullptr; });
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
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return notified_; });
  }
}

bool DeviceExecutor::runOneWorker() {
  std::vector<Entry> order;
  {
    const std::lock_guard lock(mutex_);
    order = workers_;
  }
  std::stable_sort(order.begin(), order.end(), [](const Entry& a, const Entry& b) {
    return a.virtualSeconds < b.virtualSeconds;
  });
  for (const Entry& entry : order) {
    const SteadyTime start = now();
    if (!entry.worker->runOne()) continue;
    const double seconds = secondsSince(start);
    const std::lock_guard lock(mutex_);
    for (Entry& current : workers_) {
      if (current.worker != entry.worker) continue;
      // Start-time fair queueing: whoever was idle does not catch up at the others' cost.
      virtualNow_ = std::max(virtualNow_, current.virtualSeconds);
      current.virtualSeconds = virtualNow_ + seconds;
    }
    return true;
  }
  return false;
}

}  // namespace cleave
