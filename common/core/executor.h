// Runs the work of all runs on one device, on one thread: the only thread of a daemon that calls
// Torch. Each run's worker does one action at a time, in the order that FairShares gives.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/core/fair_shares.h"

namespace cleave {

// How a worker learns that a device is through with an action whose function only issued work, as a
// GPU's does. Device thread only.
class DeviceQueue {
 public:
  // What an action took of the device, in seconds. Asked once, on the device thread, after the
  // action's `done`; destroyed there too.
  using Seconds = std::function<double()>;

  virtual ~DeviceQueue() = default;
  // What is issued from now on belongs to the next action.
  virtual void begin() = 0;
  // Calls `done` once, on any thread, when all that was issued since begin() is done. `done` must
  // not call back into the queue.
  virtual Seconds end(std::function<void()> done) = 0;
  // Returns when all that was issued is done, and every `done` has been called.
  virtual void drain() = 0;
};

// One run's work on the device. Called on the device thread only.
class DeviceWorker {
 public:
  virtual ~DeviceWorker() = default;
  // Does one action if there is one to do. Returns whether it did. Must not throw: a worker deals
  // with its own run's errors, so that one run's fault never touches another.
  virtual bool runOne() noexcept = 0;
  // Whether its run is in the middle of a step; if so, other runs wait for it longer.
  virtual bool hasOpenStep() const noexcept { return false; }
};

class DeviceExecutor {
 public:
  // Any thread. A worker is called until it is detached; the executor shares its ownership
  // meanwhile. `owner`: as FairShares::add() takes it.
  void attach(std::shared_ptr<DeviceWorker> worker, const std::string& owner = "");
  void detach(const std::shared_ptr<DeviceWorker>& worker);
  // Any thread: a worker may have something to do.
  void notify();
  // Any thread: `task` runs on the device thread before the next action.
  void post(std::function<void()> task);

  // Runs on the calling thread, which becomes the device thread for the time being, until done()
  // says so. done() is asked on this thread after each action and each wake-up.
  void runUntil(const std::function<bool()>& done);

 private:
  bool runOneWorker();
  void waitForWork();

  std::mutex mutex_;
  std::condition_variable changed_;
  bool notified_ = false;
  std::map<FairShares::User, std::shared_ptr<DeviceWorker>> workers_;
  FairShares shares_;
  std::vector<std::function<void()>> tasks_;
};

}  // namespace cleave
