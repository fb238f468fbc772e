// The engine: a non-blocking state machine for one stage, the same in both daemons. It knows which
// actions are ready, asks the schedule which to run, and keeps the order that makes results
// independent of timing. A peer sends each message once: what comes again is refused. The engine
// sees no Torch and no sockets, and has no thread: one thread calls it, the device thread.
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
#include "common/pipeline/messages.h"
#include "common/pipeline/schedule.h"

namespace cleave {

struct EngineOptions {
  Role role = Role::client;
  const Schedule* schedule = nullptr;
  std::uint32_t microBatches = 1;  // M as agreed; a small batch may have fewer
  std::uint32_t inFlight = 1;      // W as agreed
  // Client: every step fetches grads/body before it decides (verify).
  bool fetchGradients = false;
  // The client sends weights/body before anything else.
  bool initialWeights = false;
};

using SharedBytes = std::shared_ptr<const std::vector<std::byte>>;

// An action to run now, and what it needs.
struct Work {
  std::uint64_t token = 0;
  ActionKind kind = ActionKind::headForward;
  MicroBatch at;                         // of report, decide and update: phase and step
  Payload input;                         // tailStep, headBackward, bodyForward, bodyBackward
  std::optional<BodyDone> bodyDone;      // decide
  std::optional<StepDecision> decision;  // update
  Flow flow = Flow::weightsBody;         // exportBlob
  std::optional<Blob> blob;              // importBlob
};

// What an action gave, by kind: a payload (empty for headBackward, and for tailStep in eval), a
// GradientReport (report), a StepDecision (decide), bytes (exportBlob), nothing (update,
// importBlob).
using Result = std::variant<std::monostate, Payload, GradientReport, StepDecision, SharedBytes>;

// What one batch took, by kind of action, in seconds.
using ActionSeconds = std::array<double, kActionKinds>;

// What an engine knows of the batch begun last.
struct BatchState {
  MicroBatch at;
  std::array<std::uint32_t, kScheduledKinds> started{};
  std::array<std::uint32_t, kScheduledKinds> completed{};
  std::array<std::vector<bool>, kTensorFlows> arrived;  // by flow and micro-batch
  std::map<Key, Payload> waiting;                       // arrived, and not yet handed to an action
  ActionSeconds seconds{};
  bool reportStarted = false;
  bool reported = false;  // server: BodyDone is sent
  bool decideStarted = false;
  bool done = false;
};

class Engine {
 public:
  Engine(const EngineOptions& options, EngineLink& link);

  // Client: starts a batch. Requires batchDone(). `at.i` is not used.
  void begin(const MicroBatch& at);
  // Whether the batch begun last is done (train: updated; eval: all forwards run), or there was
  // none yet.
  bool batchDone() const { return !batch_ || batch_->done; }
  // Client: asks for weights/body or trace/body. Requires batchDone(). The answer is blob().
  void fetch(Flow flow);
  // Client: sends the body's initial weights, a safetensors file. Requires
  // EngineOptions::initialWeights; no batch can begin before weightsInPlace().
  void sendWeights(SharedBytes weights);
  // Whether the server has its initial weights, sent or its own.
  bool weightsInPlace() const { return weightsInPlace_; }
  // Client: the answer to the last Fetch (also grads/body of the running step); empty
  // while it is on its way.
  const std::optional<Blob>& blob() const { return blob_; }

  // What the peer sent. Throws ProtocolError for what no correct peer sends.
  void receive(Message message);

  // The action to run now; nothing: wait for a message or a completion. Each is handed out once.
  // Throws as receive() does, for messages that had to wait for an update.
  std::optional<Work> next();
  // The action is done, now or much later (a GPU's event), and took `seconds` of the device.
  // Actions of one kind complete in the order they were handed out. Throws as receive() does, for
  // messages that had to wait for an update.
  void complete(std::uint64_t token, Result result, double seconds);

  // Steps whose update is complete here.
  std::uint64_t applied() const { return applied_; }
  // A step is decided and not yet applied here.
  bool updatePending() const { return updatePending_; }
  // Client: the last step that the server said it has applied.
  std::uint64_t appliedByPeer() const { return appliedByPeer_; }
  // Client: what the server said of the running or last train batch.
  const std::optional<BodyDone>& bodyDone() const { return bodyDone_; }
  // The batch begun last; nothing before the first. Its i is 0.
  std::optional<MicroBatch> batch() const;
  // What its actions took.
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
  std::map<std::uint64_t, Work> running_;  // handed out and not complete, without their inputs
  std::uint64_t nextToken_ = 1;

  std::uint64_t applied_ = 0;
  std::uint64_t appliedByPeer_ = 0;
  std::uint64_t lastEval_ = 0;
  std::optional<StepDecision> decision_;  // the last one made or received
  bool updatePending_ = false;            // decision_ is not yet applied
  bool updateStarted_ = false;
  std::deque<Message> deferred_;  // server: came while an update was pending
  double updateSeconds_ = 0;
  std::optional<BodyDone> bodyDone_;
  std::optional<Flow> fetching_;  // client: asked for; server: to be answered
  bool exportStarted_ = false;
  std::optional<Blob> blob_;
  bool weightsInPlace_;
  std::optional<Blob> importing_;  // server: arrived, and not yet handed to its action
  bool importStarted_ = false;
};

}  // namespace cleave
