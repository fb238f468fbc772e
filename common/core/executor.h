// Runs the work of all runs on one device, on one thread: the only thread of a daemon that calls
// Torch. Each run's worker does one action at a time; among those with work, the one that has used
// least device time goes first.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace cleave {

// One run's work on the device. Called on the device thread only.
class DeviceWorker {
 public:
  virtual ~DeviceWorker() = default;
  // Does one action if there is one to do. Returns whether it did. Must not throw: a worker deals
  // with its own run's errors, so that one run's fault never touches another.
  virtual bool runOne() noexcept = 0;
};

class DeviceExecutor {
 public:
  // Any thread. A worker is called until it is detached; the executor shares its ownership
  // meanwhile.
  void attach(std::shared_ptr<DeviceWorker> worker);
  void detach(const std::shared_ptr<DeviceWorker>& worker);
  // Any thread: a worker may have something to do.
  void notify();
  // Any thread: `task` runs on the device thread before the next action.
  void post(std::function<void()> task);

  // Runs on the calling thread, which becomes the device thread for the time being, until done()
  // says so. done() is asked on this thread after each action and each wake-up.
  void runUntil(const std::function<bool()>& done);

 private:
  struct Entry {
    std::shared_ptr<DeviceWorker> worker;
    double virtualSeconds = 0;  // device time used, counted from when it last had to catch up
  };
  bool runOneWorker();

  std::mutex mutex_;
  std::condition_variable changed_;
  bool notified_ = false;
  std::vector<Entry> workers_;
  double virtualNow_ = 0;  // virtualSeconds of the worker that ran last, before it ran
  std::vector<std::function<void()>> tasks_;
};

}  // namespace cleave
