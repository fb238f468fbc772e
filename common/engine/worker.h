// A run's work on the device: an engine, the functions of its actions, and the messages waiting for
// it.
#pragma once

#include <array>
#include <atomic>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/core/clock.h"
#include "common/core/executor.h"
#include "common/engine/engine.h"
#include "common/engine/schedule.h"
#include "common/engine/trace.h"

namespace cleave {

// Computes an action. May throw, which ends the run with that error.
using ActionFunction = std::function<Result(Work work)>;
using ActionTable = std::array<ActionFunction, kActionKinds>;

// Kept for an action until it is done.
struct IssuedAction {
  std::uint64_t token = 0;
  ActionKind kind = ActionKind::headForward;
  MicroBatch at;
  std::optional<SteadyTime> idleSince;  // the device thread was idle from then until this action
};

// Actions that a device queue has completed, until the device thread collects them. Shared with the
// queue's callbacks, which may run after the worker has been destroyed.
class Completions {
 public:
  struct Completion {
    IssuedAction action;
    Result result;
    DeviceQueue::Seconds seconds;
    SteadyTime end;  // when the queue reported it
  };
  explicit Completions(DeviceExecutor& device) : device_(device) {}
  void add(std::shared_ptr<Completion> completion);  // any thread
  std::vector<std::shared_ptr<Completion>> takeAll();

 private:
  DeviceExecutor& device_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Completion>> done_;
};

// Holds the messages that a link has received until the device thread collects them. Any thread. If
// a peer sends more than was negotiated while the device is busy with other runs, it gets
// ProtocolError "too-many-in-flight".
class Mailbox {
 public:
  Mailbox(DeviceExecutor& device, std::uint32_t inFlight)
      : device_(device), max_(maxWaiting(inFlight)) {}
  // `peer`: the engine's number of the peer that sent it.
  void deliver(Message message, std::size_t peer = 0);
  struct Delivered {
    std::size_t peer = 0;
    Message message;
  };
  std::vector<Delivered> takeAll();
  std::size_t size() const;
  DeviceExecutor& device() const { return device_; }

 private:
  DeviceExecutor& device_;
  const std::size_t max_;
  mutable std::mutex mutex_;
  std::vector<Delivered> messages_;
};

class EngineWorker : public DeviceWorker {
 public:
  // `finished` is called after the action that ended a batch. `failed` is called once, and nothing
  // runs after it. Both are called on the device thread. With a `queue`, which must outlive the
  // worker's actions, an action is done when the queue reports it; without one, when its function
  // returns. `trace` may be null.
  EngineWorker(std::unique_ptr<Engine> engine, std::shared_ptr<Mailbox> mailbox, ActionTable table,
               std::function<void()> finished, std::function<void(std::exception_ptr)> failed,
               DeviceQueue* queue = nullptr, std::shared_ptr<TraceRecorder> trace = nullptr);
  // Device thread, unless cancelBuild() returned true: waits for the queue's remaining work.
  ~EngineWorker() override;

  bool runOne() noexcept override;
  bool hasOpenStep() const noexcept override { return !engine_->batchDone(); }

  // Call before attaching. `build` is the first action; it creates what the other actions need and
  // returns their functions.
  void buildFirst(std::function<ActionTable()> build) { build_ = std::move(build); }
  // Any thread: prevents the build. Returns false if it has already begun.
  bool cancelBuild() { return !buildClaimed_.exchange(true); }
  // Call before attaching. If an action, including the first one, takes longer than this, the run
  // ends with RunError "action-too-long" when the action is done.
  void limitActions(double seconds) { maxSeconds_ = seconds; }

  // Any thread: nothing runs after the current action.
  void stop() { stopped_ = true; }
  // Any thread: messages that have arrived but that the engine has not received.
  std::size_t waiting() const { return mailbox_->size(); }
  // Any thread: whether there is work here, pending or in progress, that the peer may be waiting
  // for. If not, the peer has to send the next message.
  bool hasWork() const { return hasWork_ || waiting() > 0; }

  // Device thread.
  Engine& engine() { return *engine_; }
  // Seconds from the end of a training step's last backward on this side to the start of the next
  // step's first forward, for the latest step; nothing if no training step preceded it.
  std::optional<double> betweenSteps() const { return betweenSteps_; }

 private:
  bool receiveAll();
  bool completeAll();
  void issue(Work work);
  void begins(const Work& work);
  void complete(const IssuedAction& action, Result result, SteadyTime end, double seconds);
  void build();
  void checkSeconds(const std::string& what, double seconds) const;

  const std::unique_ptr<Engine> engine_;
  const std::shared_ptr<Mailbox> mailbox_;
  ActionTable table_;
  std::function<ActionTable()> build_;  // empty: no build, or it is done
  std::atomic<bool> buildClaimed_ = false;
  double maxSeconds_ = std::numeric_limits<double>::infinity();
  const std::function<void()> finished_;
  const std::function<void(std::exception_ptr)> failed_;
  DeviceQueue* const queue_;
  const std::shared_ptr<TraceRecorder> trace_;
  const std::shared_ptr<Completions> completions_;
  std::optional<SteadyTime> lastBackward_;  // its end; empty once an evaluation has begun
  std::optional<double> betweenSteps_;
  std::optional<SteadyTime> idleSince_;  // since when there has been nothing to do
  std::atomic<bool> stopped_ = false;
  std::size_t underWay_ = 0;           // actions issued and not complete
  std::atomic<bool> hasWork_ = false;  // see hasWork(); excludes the mailbox
};

}  // namespace cleave
