// Runs the work of all runs on one device, on one thread: the process's only thread that calls
// Torch. FairShares decides which run's worker does the next action.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/core/fair_shares.h"

namespace cleave {

// Reports when an asynchronous device, such as a GPU, has finished an action. Device thread only.
class DeviceQueue {
 public:
  // Returns the device time of an action, in seconds. It is called once, after the action's `done`.
  // It is called and destroyed on the device thread.
  using Seconds = std::function<double()>;

  virtual ~DeviceQueue() = default;
  // Everything issued from now on belongs to the next action.
  virtual void begin() = 0;
  // Calls `done` once, on any thread, when all work issued since begin() has finished. `done` must
  // not call back into the queue.
  virtual Seconds end(std::function<void()> done) = 0;
  // Returns when all issued work has finished and every `done` has been called.
  virtual void drain() = 0;
};

// One run's work on the device. Called only on the device thread.
class DeviceWorker {
 public:
  virtual ~DeviceWorker() = default;
  // Does one action if one is ready. Returns whether it did. Must not throw: each worker handles
  // its own run's errors, so that they never affect another run.
  virtual bool runOne() noexcept = 0;
  // Whether the run is in the middle of a step. Other runs then wait longer for it.
  virtual bool hasOpenStep() const noexcept { return false; }
};

class DeviceExecutor {
 public:
  // Any thread. The executor shares ownership of the worker, and calls it, until it is detached. An
  // action that runs then is still charged to `owner`: see FairShares::add().
  void attach(std::shared_ptr<DeviceWorker> worker, const std::string& owner = "");
  void detach(const std::shared_ptr<DeviceWorker>& worker);
  // Any thread. Signals that a worker may have work.
  void notify();
  // Any thread. Runs `task` on the device thread before the next action.
  void post(std::function<void()> task);

  // Makes the calling thread the device thread until done() returns true. done() is called on this
  // thread after each action and each wake-up.
  void runUntil(const std::function<bool()>& done);

 private:
  bool runOneWorker();
  bool begin(FairShares::User user);
  void waitForWork();

  std::mutex mutex_;
  std::condition_variable changed_;
  bool notified_ = false;
  std::map<FairShares::User, std::shared_ptr<DeviceWorker>> workers_;
  std::optional<FairShares::User> running_;  // whose action runs
  bool runningHasLeft_ = false;              // it was detached meanwhile
  FairShares shares_;
  std::vector<std::function<void()>> tasks_;
};

}  // namespace cleave
