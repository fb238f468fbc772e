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

#include "common/core/clock.h"
#include "common/core/open_file.h"
#include "common/resources/fair_shares.h"

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

// One run's work on the device. Called only on the device thread. Must not throw: each worker
// handles its own run's errors, so that they never affect another run.
class DeviceWorker {
 public:
  virtual ~DeviceWorker() = default;
  // Does one action if one is ready, or starts it. Returns whether it did.
  virtual bool runOne() noexcept = 0;

  // Actions that have been started compute in another process, and use the device there: until they
  // end, no other run's action begins.
  struct Started {
    int file = -1;        // becomes readable when one of them ends
    SteadyTime deadline;  // when the first one must have ended
  };
  virtual std::optional<Started> started() const noexcept { return std::nullopt; }
  // Ends the started actions that are done, or whose deadline has passed. Returns whether there
  // were any.
  virtual bool collect() noexcept { return false; }
  // Whether runOne() may find an action.
  virtual bool mayHaveWork() const noexcept { return true; }
  // Whether the run is in the middle of a step. Other runs then wait longer for it.
  virtual bool hasOpenStep() const noexcept { return false; }
};

class DeviceExecutor {
 public:
  DeviceExecutor();  // throws std::system_error
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
  // The run whose started actions use the device.
  struct Busy {
    FairShares::User user = 0;
    std::shared_ptr<DeviceWorker> worker;
    SteadyTime since;  // not yet charged to it
  };

  bool runOneWorker();
  bool runBusyWorker();
  bool begin(FairShares::User user);
  bool othersWait();
  void signal();
  void waitForWork();
  void waitForBusy(std::unique_lock<std::mutex>& lock);

  const OpenFile event_;  // readable: the device thread, which waits for another process, has news
  std::mutex mutex_;
  std::condition_variable changed_;
  bool notified_ = false;
  bool isPolling_ = false;  // the device thread waits for `event_`
  std::optional<Busy> busy_;
  std::map<FairShares::User, std::shared_ptr<DeviceWorker>> workers_;
  std::optional<FairShares::User> running_;  // whose action runs
  bool runningHasLeft_ = false;              // it was detached meanwhile
  FairShares shares_;
  std::vector<std::function<void()>> tasks_;
};

}  // namespace cleave
