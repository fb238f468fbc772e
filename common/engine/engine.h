// The engine: a non-blocking state machine for one stage, the same in both daemons. It tracks which
// actions are ready, asks the schedule which one to run, and enforces the order that makes results
// independent of timing. A peer sends each message once; a repeated one is rejected. The engine
// uses neither Torch nor sockets and has no thread of its own: one thread calls it, the device
// thread.
//
// clang-format off
//   client, train   HeadForward(i) -> activation/0    activation/1 -> TailStep(i) -> gradient/1
//                   gradient/0 -> HeadBackward(i)     all done and BodyDone -> Decide -> Step -> Update
//   server, train   activation/0 -> BodyForward(i) -> activation/1
//                   gradient/1 -> BodyBackward(i) -> gradient/0
//                   all done -> Report -> BodyDone    Step -> Update -> StepOk
//   eval            forward only; the client's TailStep sends nothing
// clang-format on
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "common/core/step.h"
#include "common/engine/messages.h"
#include "common/engine/schedule.h"

namespace cleave {

struct EngineOptions {
  Role role = Role::client;
  const Schedule* schedule = nullptr;
  std::uint32_t microBatches = 1;  // M as negotiated; a small batch may have fewer
  std::uint32_t inFlight = 1;      // W as negotiated
  // Client: fetch grads/body in every step before deciding it (for `verify`).
  bool fetchGradients = false;
  // The client sends weights/body before anything else.
  bool initialWeights = false;
};

using SharedBytes = std::shared_ptr<const std::vector<std::byte>>;

// An action to run now, with its inputs.
struct Work {
  std::uint64_t token = 0;
  ActionKind kind = ActionKind::headForward;
  MicroBatch at;                         // report, decide and update use only phase and step
  Payload input;                         // tailStep, headBackward, bodyForward, bodyBackward
  std::optional<BodyDone> bodyDone;      // decide
  std::optional<StepDecision> decision;  // update
  Flow flow = Flow::weightsBody;         // exportBlob
  std::optional<Blob> blob;              // importBlob
};

// The result of an action, by kind: a payload (empty for headBackward, and for tailStep in eval), a
// GradientReport (report), a StepDecision (decide), bytes (exportBlob), or nothing (update,
// importBlob).
using Result = std::variant<std::monostate, Payload, GradientReport, StepDecision, SharedBytes>;

// Seconds that one batch took, by kind of action.
using ActionSeconds = std::array<double, kActionKinds>;

// The engine's state for the latest batch.
struct BatchState {
  MicroBatch at;
  std::array<std::uint32_t, kScheduledKinds> started{};
  std::array<std::uint32_t, kScheduledKinds> completed{};
  std::array<std::vector<bool>, kTensorFlows> arrived;  // by flow and micro-batch
  std::map<Key, Payload> waiting;                       // arrived, not yet passed to an action
  ActionSeconds seconds{};
  bool reportStarted = false;
  bool reported = false;  // server: BodyDone has been sent
  bool decideStarted = false;
  bool done = false;
};

class Engine {
 public:
  Engine(const EngineOptions& options, EngineLink& link);

  // Client: starts a batch. Requires batchDone(). `at.i` is not used.
  void begin(const MicroBatch& at);
  // Whether the latest batch is done (train: updated; eval: all forwards have run). True before the
  // first batch.
  bool batchDone() const { return !batch_ || batch_->done; }
  // Client: requests weights/body or trace/body. Requires batchDone(). The answer arrives in
  // blob().
  void fetch(Flow flow);
  // Client: sends the body's initial weights, a safetensors file. Requires
  // EngineOptions::initialWeights; no batch can begin before weightsInPlace().
  void sendWeights(SharedBytes weights);
  // Whether the server has its initial weights, either received or its own.
  bool weightsInPlace() const { return weightsInPlace_; }
  // Client: the answer to the last Fetch (including grads/body of the current step); empty until it
  // arrives.
  const std::optional<Blob>& blob() const { return blob_; }

  // Handles a message from the peer. Throws ProtocolError if no correct peer would send it.
  void receive(Message message);

  // The action to run now; nothing: wait for a message or a completion. Returns each action once.
  // Throws as receive() does, for messages that were deferred until an update.
  std::optional<Work> next();
  // Reports that an action is done and used the device for `seconds`; the call may come much later
  // (a GPU's event). Actions of one kind must complete in the order in which next() returned them.
  // Throws as receive() does, for messages that were deferred until an update.
  void complete(std::uint64_t token, Result result, double seconds);

  // Number of steps whose update is complete here.
  std::uint64_t applied() const { return applied_; }
  // Whether a step is decided but not yet applied here.
  bool updatePending() const { return updatePending_; }
  // Client: the last step that the server has confirmed as applied.
  std::uint64_t appliedByPeer() const { return appliedByPeer_; }
  // Client: the server's BodyDone for the current or latest train batch.
  const std::optional<BodyDone>& bodyDone() const { return bodyDone_; }
  // The latest batch; nothing before the first. Its i is 0.
  std::optional<MicroBatch> batch() const;
  // Seconds of the latest batch's actions.
  ActionSeconds seconds() const { return batch_ ? batch_->seconds : ActionSeconds{}; }

 private:
  void dispatch(Message&& message);
  void receiveAtServer(TensorMessage&& message);
  void receiveAtClient(TensorMessage&& message);
  void startBatch(const MicroBatch& at);
  void startServerBatch(const TensorMessage& message);
  void receiveBodyDone(const BodyDone& done);
  void receiveDecision(const StepDecision& decision);
  void receiveStepOk(const StepOk& ok);
  void receiveFetch(const Fetch& fetch);
  void receiveBlob(Blob&& blob);
  void receiveWeights(Blob&& blob);
  void checkAgainstBatch(const TensorMessage& message) const;
  void store(TensorMessage&& message);

  bool isTrain() const { return batch_->at.phase == Phase::train; }
  std::uint32_t started(ActionKind kind) const;
  std::uint32_t completed(ActionKind kind) const;
  bool allCompleted(ActionKind kind) const { return completed(kind) == batch_->at.microBatches; }
  bool hasArrived(Flow flow, std::uint32_t i) const;
  bool isWaiting(Flow flow, std::uint32_t i) const;
  ReadyKinds readyKinds() const;
  std::optional<ActionKind> readyUnscheduled() const;
  Work makeScheduled(ActionKind kind);
  Work makeUnscheduled(ActionKind kind);
  void finishScheduled(Work&& work, Result&& result);
  void finishReport(const GradientReport& report);
  void finishUpdate(double seconds);

  EngineOptions options_;
  EngineLink& link_;
  std::optional<BatchState> batch_;
  std::map<std::uint64_t, Work> running_;  // issued and not complete, without their inputs
  std::uint64_t nextToken_ = 1;

  std::uint64_t applied_ = 0;
  std::uint64_t appliedByPeer_ = 0;
  std::uint64_t lastEval_ = 0;
  std::optional<StepDecision> decision_;  // the last one made or received
  bool updatePending_ = false;            // decision_ has not been applied
  bool updateStarted_ = false;
  std::deque<Message> deferred_;  // server: arrived while an update was pending
  double updateSeconds_ = 0;
  std::optional<BodyDone> bodyDone_;
  std::optional<Flow> fetching_;  // client: requested; server: to be answered
  bool exportStarted_ = false;
  std::optional<Blob> blob_;
  bool weightsInPlace_;
  std::optional<Blob> importing_;  // server: arrived, not yet passed to its action
  bool importStarted_ = false;
};

}  // namespace cleave
