// The base class of engines. An engine is a non-blocking state machine for one side of a run. It
// tracks which actions are ready, asks the schedule which one to run, and enforces the order that
// makes results independent of timing. A peer sends each message once; repeated messages are
// rejected. Engines use neither Torch nor sockets and have no thread of their own: one thread calls
// them, the device thread.
//
// There are two engines: Coordinator (the client, which decides each step) and Participant (a
// server, which reports its gradients and applies the steps). In both, StageEngine orders the
// actions of a batch.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "common/engine/messages.h"
#include "common/engine/stage_engine.h"
#include "common/topology/step.h"

namespace cleave {

struct EngineOptions {
  const Schedule* schedule = nullptr;
  std::uint32_t microBatches = 1;  // M as negotiated; a small batch may have fewer
  std::uint32_t inFlight = 1;      // W as negotiated
  // The client sends weights/body before anything else.
  bool initialWeights = false;
  // The client sends Resume before anything else; then it sends no initial weights.
  bool resumes = false;
};

using SharedBytes = std::shared_ptr<const std::vector<std::byte>>;

// The state that an engine keeps from one batch to the next.
struct EngineState {
  std::uint64_t applied = 0;    // steps
  std::uint64_t evaluated = 0;  // batches of evaluation
};

// The input of an action, by kind: the tensors that arrived for it (tailStep, headBackward,
// bodyForward, bodyBackward), the reports of all bodies in model order (decide), the decision
// (update, snapshot), the flow to export (exportBlob), the weights to import (importBlob), the step
// to resume from (restore), or nothing.
using Input = std::variant<std::monostate, TensorBundle, std::vector<BodyDone>, StepDecision, Flow,
                           Blob, Resume>;

// An action to run now.
struct Work {
  std::uint64_t token = 0;
  ActionKind kind = ActionKind::headForward;
  MicroBatch at;  // report, decide and update use only phase and step
  Input input;

  TensorBundle& tensors() { return std::get<TensorBundle>(input); }
};

// The result of an action, by kind: the tensors to send, in the order of the cut (empty for
// headBackward, and for tailStep in eval), a GradientReport (report), a StepDecision (decide),
// bytes (exportBlob), the engine's state (restore), or nothing (update, importBlob, snapshot).
using Result = std::variant<std::monostate, TensorBundle, GradientReport, StepDecision, SharedBytes,
                            EngineState>;

// Seconds that one batch took, by kind of action.
using ActionSeconds = std::array<double, kActionKinds>;

class Engine {
 public:
  virtual ~Engine() = default;

  // Call between batches. An engine that restores the state continues exactly as this one would.
  EngineState state() const { return {applied_, evaluated_}; }
  // Call before the first batch.
  virtual void restore(const EngineState& state) {
    applied_ = state.applied;
    evaluated_ = state.evaluated;
  }

  // Handles a message. `peer`: index of the sender among the bodies or links that the engine was
  // constructed with. Throws ProtocolError if no correct peer would send the message.
  virtual void receive(std::size_t peer, Message message) = 0;

  // Returns the action to run now; nullopt: wait for a message or a completion. Returns each action
  // once. Throws the errors of receive() for messages that were deferred until an update.
  std::optional<Work> next();
  // Whether next() would return the report.
  virtual bool isReportNext() const { return false; }
  // Reports that an action is done and used the device for `seconds`; the call may come much later
  // (a GPU's event). Actions of one kind must complete in the order in which next() returned them.
  // Throws the errors of receive() for messages that were deferred until an update.
  void complete(std::uint64_t token, Result result, double seconds);

  // Whether the latest batch is done: in training, the update is complete; in evaluation, all
  // actions are. True before the first batch.
  virtual bool batchDone() const = 0;
  // The number of steps whose update is complete on this side.
  std::uint64_t applied() const { return applied_; }
  // The latest batch, with i = 0; nullopt before the first batch.
  const std::optional<MicroBatch>& batch() const { return batch_; }
  // Seconds of the latest batch's actions.
  const ActionSeconds& seconds() const { return seconds_; }

 protected:
  Engine(const EngineOptions& options, StageRows rows);

  virtual std::optional<Work> nextWork() = 0;
  virtual void finish(Work&& work, Result&& result, double seconds) = 0;

  void startBatch(const MicroBatch& at);
  // A scheduled action that is ready.
  std::optional<Work> nextOfStage();
  // The tensors that a completed scheduled action sends.
  std::vector<TensorMessage> finishOfStage(const Work& work, Result&& result);
  Work workOf(ActionKind kind, Input input = {}) const;

  // Throws ProtocolError.
  [[noreturn]] static void refuse(std::string code, const std::string& sentence);
  static std::string stepText(Phase phase, std::uint64_t step);  // "train step 3"
  // Throw ProtocolError "bad-key".
  void checkAgainstBatch(const TensorMessage& message) const;
  void store(TensorMessage&& message);

  bool isTrain() const { return batch_->phase == Phase::train; }
  bool isCurrent(const Key& key) const {
    return batch_ && batch_->phase == key.phase && batch_->step == key.step;
  }

  const EngineOptions options_;
  StageEngine stage_;
  std::uint64_t applied_ = 0;
  std::uint64_t evaluated_ = 0;  // the last evaluation batch that began

 private:
  std::optional<MicroBatch> batch_;
  ActionSeconds seconds_{};
  std::map<std::uint64_t, Work> running_;  // actions in progress, without their tensors
  std::uint64_t nextToken_ = 1;
};

}  // namespace cleave
