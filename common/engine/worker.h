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
#include "common/core/error.h"
#include "common/engine/engine.h"
#include "common/engine/schedule.h"
#include "common/engine/trace.h"
#include "common/resources/executor.h"

namespace cleave {

// Computes an action. May throw, which ends the run with that error.
using ActionFunction = std::function<Result(Work work)>;
// Starts an action, and returns. The action ends when `done` is called, on any thread, with its
// result, or with the error that ends the run.
using Done = std::function<void(Result result, std::exception_ptr error)>;
using StartFunction = std::function<void(Work work, Done done)>;

// Computes started actions in a process of the run's own, one at a time, in the order in which they
// were started. Device thread only.
class ActionProcess {
 public:
  virtual ~ActionProcess() = default;
  // Calls `done` of the actions that have ended. Throws the error of an action that has failed, or
  // that exceeds its time.
  virtual void collect() = 0;
  // The actions under way; nullopt: none.
  virtual std::optional<DeviceWorker::Started> started() const = 0;
};

// The functions of a run's actions. A kind in `starts` needs no ActionFunction.
struct ActionTable : std::array<ActionFunction, kActionKinds> {
  std::array<StartFunction, kActionKinds> starts;
  ActionProcess* process = nullptr;  // of all started actions except reductions; null: none
};

// Data kept for an action until it is done.
struct IssuedAction {
  std::uint64_t token = 0;
  ActionKind kind = ActionKind::headForward;
  MicroBatch at;
  std::optional<SteadyTime> idleSince;  // when the device thread became idle before this action
  SteadyTime begin{};                   // when it was issued
};

// Actions that a device queue or a StartFunction has completed, until the device thread collects
// them. Shared with the callbacks, which may run after the worker has been destroyed.
class Completions {
 public:
  struct Completion {
    IssuedAction action;
    Result result;
    DeviceQueue::Seconds seconds;  // null: the time from its begin, or the last one's end, to `end`
    SteadyTime end;                // when it was reported
    std::exception_ptr error;
  };
  explicit Completions(DeviceExecutor& device) : device_(device) {}
  void add(std::shared_ptr<Completion> completion);  // any thread
  std::vector<std::shared_ptr<Completion>> takeAll();
  bool isEmpty() const;

 private:
  DeviceExecutor& device_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Completion>> done_;
};

// Holds the messages that a link has received until the device thread collects them. Any thread. A
// peer that sends more messages than negotiated causes ProtocolError "too-many-in-flight", even if
// the device is busy with other runs.
class Mailbox {
 public:
  // `peers`: the number of senders.
  Mailbox(DeviceExecutor& device, std::uint32_t inFlight, std::size_t peers = 1)
      : device_(device), max_(peers * maxWaiting(inFlight)) {}
  // `peer`: the sender, as for Engine::receive().
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

// Whether the duration of an action depends on the size of its micro-batch, or on the model alone,
// as that of a restore does.
enum class Duration : std::uint8_t { ofBatch, ofModel };
Duration durationOf(ActionKind kind);
// The error "action-too-long", for an action that exceeds the limit of limitActions().
RunError actionTooLong(const std::string& sentence, Duration duration);

class EngineWorker : public DeviceWorker {
 public:
  // `finished` is called after each batch that has ended (Engine::ended()). `failed` is called at
  // most once; no action runs after it. Both are called on the device thread. With a `queue`, which
  // must outlive the worker's actions, an action is done when the queue reports it; without one,
  // when its function returns. `trace` may be null.
  EngineWorker(std::unique_ptr<Engine> engine, std::shared_ptr<Mailbox> mailbox, ActionTable table,
               std::function<void()> finished, std::function<void(std::exception_ptr)> failed,
               DeviceQueue* queue = nullptr, std::shared_ptr<TraceRecorder> trace = nullptr);
  // Waits for the queue's remaining work. Device thread, unless cancelBuild() returned true.
  ~EngineWorker() override;

  bool runOne() noexcept override;
  std::optional<Started> started() const noexcept override;
  bool collect() noexcept override;
  bool mayHaveWork() const noexcept override;
  // False while only a reduction is under way: it needs other servers, where the runs that wait for
  // this one may come first.
  bool hasOpenStep() const noexcept override {
    return !engine_->batchDone() && (!isReducing_ || underWay_ > 1);
  }

  // Call before attaching. `build` is the first action; it creates what the other actions need and
  // returns their functions.
  void buildFirst(std::function<ActionTable()> build) { build_ = std::move(build); }
  // Any thread: prevents the build. Returns false if the build has already started.
  bool cancelBuild() { return !buildClaimed_.exchange(true); }
  // Call before attaching. If an action, including the first one, takes longer than this, the run
  // ends with RunError "action-too-long" when the action is done.
  void limitActions(double seconds) { maxSeconds_ = seconds; }

  // Any thread. No action runs after the current one.
  void stop() { stopped_ = true; }
  // Any thread. Messages that have arrived and have not been passed to the engine.
  std::size_t waiting() const { return mailbox_->size(); }
  // Any thread. Whether there is work, pending or in progress, that the peer may be waiting for. If
  // not, this side is waiting for the peer's next message.
  bool hasWork() const { return hasWork_ || waiting() > 0; }
  // Any thread. Calls `then` once, on any thread, when there is no such work, or the run has
  // failed. Call it when no more messages arrive.
  void whenIdle(std::function<void()> then);

  // Device thread.
  Engine& engine() { return *engine_; }
  // Seconds from the end of a training step's last backward on this side to the start of the next
  // step's first forward, for the latest step; nullopt if no training step preceded it, or if it
  // began before the previous one had ended.
  std::optional<double> betweenSteps() const { return betweenSteps_; }

 private:
  bool receiveAll();
  bool completeAll();
  void issueReport();
  void fail();
  void becomeIdle();
  bool isFull() const;
  void issue(Work work);
  void start(const StartFunction& function, Work work);
  void begins(const Work& work);
  void complete(const IssuedAction& action, Result result, SteadyTime end, double seconds);
  void build();
  void checkSeconds(const std::string& what, double seconds, Duration duration) const;

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
  // End of the last backward; empty once an evaluation has begun.
  std::optional<SteadyTime> lastBackward_;
  std::optional<double> betweenSteps_;
  std::optional<SteadyTime> idleSince_;  // when the worker ran out of work
  SteadyTime lastEnd_{};                 // of the started actions except reductions
  double lastSeconds_ = std::numeric_limits<double>::infinity();  // of these, the last one's
  std::atomic<bool> stopped_ = false;
  std::size_t underWay_ = 0;           // actions issued and not complete
  bool isReducing_ = false;            // one of them is a reduction
  std::atomic<bool> hasWork_ = false;  // see hasWork(); excludes the mailbox
  std::mutex idleMutex_;
  std::function<void()> whenIdle_;  // guarded by idleMutex_
};

}  // namespace cleave
