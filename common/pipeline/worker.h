// One run's work on the device: an engine, the functions its actions call, and the messages that
// wait for it.
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
#include "common/pipeline/engine.h"
#include "common/pipeline/trace.h"

namespace cleave {

// Client and server differ in these alone. May throw: the run ends with that error.
using ActionFunction = std::function<Result(Work work)>;
using ActionTable = std::array<ActionFunction, kActionKinds>;

// What is remembered of an action until it is done.
struct IssuedAction {
  std::uint64_t token = 0;
  ActionKind kind = ActionKind::headForward;
  MicroBatch at;
  std::optional<SteadyTime> idleSince;  // there was nothing to do before it, from then on
};

// Actions that a queue is through with, until the device thread looks. Shared with the queue's
// callbacks, which may come after the worker has gone.
class Completions {
 public:
  struct Completion {
    IssuedAction action;
    Result result;
    DeviceQueue::Seconds seconds;
    SteadyTime end;  // when the queue said so
  };
  explicit Completions(DeviceExecutor& device) : device_(device) {}
  void add(std::shared_ptr<Completion> completion);  // any thread
  std::vector<std::shared_ptr<Completion>> takeAll();

 private:
  DeviceExecutor& device_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Completion>> done_;
};

// Where a link leaves what has arrived, until the device thread looks. Any thread. A peer that
// sends more than what was agreed, while the device is busy with others, gets ProtocolError
// "too-many-in-flight".
class Mailbox {
 public:
  Mailbox(DeviceExecutor& device, std::uint32_t inFlight)
      : device_(device), most_(std::size_t{8} * inFlight + 64) {}
  void deliver(Message message);
  std::vector<Message> takeAll();
  std::size_t size() const;
  DeviceExecutor& device() const { return device_; }

 private:
  DeviceExecutor& device_;
  const std::size_t most_;
  mutable std::mutex mutex_;
  std::vector<Message> messages_;
};

class EngineWorker : public DeviceWorker {
 public:
  // `finished` is called after the action that ended a batch, and `failed` once, after which
  // nothing runs any more. Both on the device thread. With a `queue`, which outlives the worker's
  // actions, an action is done when the queue says so; without, when its function returns. `trace`
  // may be null.
  EngineWorker(const EngineOptions& options, std::shared_ptr<EngineLink> link,
               std::shared_ptr<Mailbox> mailbox, ActionTable table, std::function<void()> finished,
               std::function<void(std::exception_ptr)> failed, DeviceQueue* queue = nullptr,
               std::shared_ptr<TraceRecorder> trace = nullptr);
  // Device thread, unless cancelBuild() was in time: waits for what the queue still has to do.
  ~EngineWorker() override;

  bool runOne() noexcept override;
  bool hasOpenStep() const noexcept override { return !engine_.batchDone(); }

  // Before it is attached. `build` is the first action, which makes what the others need and gives
  // their functions.
  void buildFirst(std::function<ActionTable()> build) { build_ = std::move(build); }
  // Any thread: nothing is built any more. False if that has begun.
  bool cancelBuild() { return !buildClaimed_.exchange(true); }
  // Before it is attached: an action, the first one too, that takes longer ends the run with
  // RunError "action-too-long" once it is done.
  void limitActions(double seconds) { mostSeconds_ = seconds; }

  // Device thread: no batch begins any more; calls `drained` once, when the one under way is done,
  // or now, where there is none.
  void drain(std::function<void()> drained);
  // Any thread: nothing runs any more once the action under way is done.
  void stop() { stopped_ = true; }
  // Any thread: messages that have come and that the engine has not received.
  std::size_t waiting() const { return mailbox_->size(); }
  // Any thread: whether there is something to do or under way here that the peer may wait for. If
  // not, the peer has to send the next message.
  bool hasWork() const { return hasWork_ || waiting() > 0; }

  // Device thread.
  Engine& engine() { return engine_; }
  // From the end of a training step's last backward here to the begin of the next one's first
  // forward, in seconds, of the step that began last; nothing where no training step came before.
  std::optional<double> betweenSteps() const { return betweenSteps_; }

 private:
  void endIfDrained();
  bool receiveAll();
  bool completeAll();
  void issue(Work work);
  void begins(const Work& work);
  void complete(const IssuedAction& action, Result result, SteadyTime end, double seconds);
  void build();
  void checkSeconds(const std::string& what, double seconds) const;

  const std::shared_ptr<EngineLink> link_;
  const std::shared_ptr<Mailbox> mailbox_;
  Engine engine_;
  ActionTable table_;
  std::function<ActionTable()> build_;  // empty: nothing to build, or it is done
  std::atomic<bool> buildClaimed_ = false;
  double mostSeconds_ = std::numeric_limits<double>::infinity();
  const std::function<void()> finished_;
  const std::function<void(std::exception_ptr)> failed_;
  DeviceQueue* const queue_;
  const std::shared_ptr<TraceRecorder> trace_;
  const std::shared_ptr<Completions> completions_;
  std::optional<SteadyTime> lastBackward_;  // ended; nothing once an evaluation has begun
  std::optional<double> betweenSteps_;
  std::optional<SteadyTime> idleSince_;  // since then there is nothing to do
  std::atomic<bool> stopped_ = false;
  std::size_t underWay_ = 0;           // actions issued and not complete
  std::atomic<bool> hasWork_ = false;  // see hasWork(); without what waits in the mailbox
  std::function<void()> drained_;      // empty: no caller waits for it
};

}  // namespace cleave
