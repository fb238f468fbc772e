#include "common/resources/executor.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <system_error>
#include <utility>

namespace cleave {

DeviceExecutor::DeviceExecutor() : event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!event_) throw std::system_error(errno, std::generic_category(), "eventfd");
}

// Requires the lock.
void DeviceExecutor::signal() {
  notified_ = true;
  changed_.notify_all();
  if (isPolling_) ::eventfd_write(event_.get(), 1);
}

void DeviceExecutor::attach(std::shared_ptr<DeviceWorker> worker, const std::string& owner) {
  const std::lock_guard lock(mutex_);
  workers_.emplace(shares_.add(owner), std::move(worker));
  signal();
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
    if (busy_ && busy_->user == entry->first) {
      shares_.used(entry->first, secondsSince(busy_->since));
      detached.push_back(std::move(busy_->worker));
      busy_.reset();
    }
    if (entry->first == running_) {
      runningHasLeft_ = true;
    } else {
      shares_.remove(entry->first);
    }
    detached.push_back(std::move(entry->second));
    entry = workers_.erase(entry);
  }
  signal();  // workers held back for this one may now run
}

void DeviceExecutor::notify() {
  const std::lock_guard lock(mutex_);
  signal();
}

void DeviceExecutor::post(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  signal();
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
    if (!tasks.empty() || runBusyWorker() || runOneWorker()) continue;
    waitForWork();
  }
}

// The run may start another action before the last one has ended, so that its process does not have
// to wait, if no other run would then wait for two.
bool DeviceExecutor::runBusyWorker() {
  std::optional<Busy> busy;
  {
    const std::lock_guard lock(mutex_);
    busy = busy_;
  }
  if (!busy) return false;
  const bool collected = busy->worker->collect();
  const bool hasRun = busy->worker->started() && !othersWait() && busy->worker->runOne();
  const std::lock_guard lock(mutex_);
  if (!busy_) return true;  // it was detached
  if (collected) {
    shares_.used(busy->user, secondsSince(busy->since), busy->worker->hasOpenStep());
    busy_->since = now();
  }
  if (!busy->worker->started()) busy_.reset();
  return collected || hasRun;
}

bool DeviceExecutor::othersWait() {
  const std::lock_guard lock(mutex_);
  const auto order = shares_.order();
  return std::any_of(order.begin(), order.end(), [this](FairShares::User user) {
    return (!busy_ || user != busy_->user) && workers_.at(user)->mayHaveWork();
  });
}

bool DeviceExecutor::runOneWorker() {
  std::vector<std::pair<FairShares::User, std::shared_ptr<DeviceWorker>>> order;
  {
    const std::lock_guard lock(mutex_);
    if (busy_) return false;
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
    if (std::exchange(runningHasLeft_, false)) {
      shares_.remove(user);
    } else if (worker->started()) {
      assert(!busy_);
      busy_ = Busy{user, worker, now()};
    }
    if (hasRun) return true;
  }
  return false;
}

// Returns false if the worker was detached.
bool DeviceExecutor::begin(FairShares::User user) {
  const std::lock_guard lock(mutex_);
  assert(!running_);
  if (!workers_.contains(user)) return false;
  running_ = user;
  return true;
}

// Waits until a worker may have work, or until one that is held back may run.
void DeviceExecutor::waitForWork() {
  std::unique_lock lock(mutex_);
  if (busy_) return waitForBusy(lock);
  const SteadyTime start = now();
  const auto hasNews = [this] { return notified_; };
  if (const auto held = shares_.heldFor()) {
    changed_.wait_for(lock, std::chrono::duration<double>(*held), hasNews);
  } else {
    changed_.wait(lock, hasNews);
  }
  shares_.idled(secondsSince(start));
}

void DeviceExecutor::waitForBusy(std::unique_lock<std::mutex>& lock) {
  const auto started = busy_->worker->started();
  if (notified_ || !started) return;
  constexpr double kMaxWait = 60;
  const double left = std::clamp(secondsBetween(now(), started->deadline), 0.0, kMaxWait);
  isPolling_ = true;
  lock.unlock();
  std::array files = {pollfd{started->file, POLLIN, 0}, pollfd{event_.get(), POLLIN, 0}};
  ::poll(files.data(), files.size(), static_cast<int>(std::ceil(left * 1e3)));
  lock.lock();
  isPolling_ = false;
  eventfd_t count = 0;
  if (files[1].revents != 0) ::eventfd_read(event_.get(), &count);
}

}  // namespace cleave
