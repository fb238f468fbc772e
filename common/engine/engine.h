// The base class of engines. An engine is a non-blocking state machine for one side of a run. It
// tracks which actions are ready, asks the schedule which one to run, and enforces the order that
// makes results independent of timing. A peer sends each message once; repeated messages are
// rejected. Engines use neither Torch nor sockets and have no thread of their own: one thread calls
// them, the device thread.
//
// There are two engines: Coordinator (a client) and Participant (a server). In both, StageEngine
// orders the actions of the micro-batches that the engine computes, its share of a batch; in a
// server of a cohort, one StageEngine per member may do so.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
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
  // D: up to D + 1 training steps are in progress at the same time; see versionFor().
  std::uint32_t staleness = 0;
  // Client: the bodies exchange the tensors between them over direct links.
  bool hasEdges = false;
  // Server: the tensors at the body's first cut arrive over such a link, so they may overtake the
  // client's messages.
  bool hasEdgeBefore = false;
  // Server: the replica of its body, and whether its gradients are added to those of the others
  // before each report.
  Replica replica = {};
  bool reduces = false;
  std::uint32_t bodies = 1;  // server: number of bodies in the row
  // ---- For a cohort: clients whose samples together form the batches ----
  // Client: its number in the cohort. Member 0 decides the steps, and the others obey.
  std::optional<std::uint32_t> member = std::nullopt;
  // Server: adds the gradients of all heads and tails, and passes each Step on to the members that
  // obey. One server of the run does it, the first one.
  bool sumsMembers = false;
  // Server: orders the micro-batches of each member on their own, so that the others do not wait
  // for a slow one within a step. Else all are computed in the order of the batch.
  bool byMember = false;
  // Server: returns how a batch with this phase and step is divided. Empty: a batch has any number
  // of samples, in M micro-batches.
  std::function<Division(const MicroBatch& at)> planned = nullptr;
};

using SharedBytes = std::shared_ptr<const std::vector<std::byte>>;

// The state that an engine keeps from one batch to the next. Steps in progress are not part of it.
struct EngineState {
  std::uint64_t applied = 0;    // steps
  std::uint64_t evaluated = 0;  // batches of evaluation
};

// The input of an action, by kind: the tensors that arrived for it (tailStep, headBackward,
// bodyForward, bodyBackward), the reports of all bodies in model order (decide), the decision
// (update, snapshot), the flow to export (exportBlob), the weights or sums to import (importBlob),
// the step to resume from (restore), the members' parts in their order (sum), or nothing.
using Input = std::variant<std::monostate, TensorBundle, std::vector<BodyDone>, StepDecision, Flow,
                           Blob, Resume, std::vector<Blob>>;

// An action to run now.
struct Work {
  std::uint64_t token = 0;
  ActionKind kind = ActionKind::headForward;
  MicroBatch at;         // reduce, report, decide and update use only phase and step
  bool isFirst = false;  // of its kind in the batch
  Input input;

  TensorBundle& tensors() { return std::get<TensorBundle>(input); }
};

// The result of an action, by kind: the tensors to send, in the order of the cut (empty for
// headBackward, and for tailStep in eval), a GradientReport (report), a StepDecision (decide),
// bytes (exportBlob, sum), the engine's state (restore), a digest of the weights (update of a body
// with replicas), or nothing (other updates, importBlob, snapshot, reduce).
using Result = std::variant<std::monostate, TensorBundle, GradientReport, StepDecision, SharedBytes,
                            EngineState, std::uint64_t>;

// Seconds that one batch took, by kind of action.
using ActionSeconds = std::array<double, kActionKinds>;

// A batch, the micro-batches of it that the engine computes, and the seconds of its actions so far.
struct BatchSeconds {
  MicroBatch at;  // with i = 0
  Share share;
  ActionSeconds seconds{};

  // The share as if it were the batch.
  MicroBatch computed() const {
    return {at.phase, at.step, 0, {share.count, at.batch.samplesOf(share)}};
  }
};

class Engine {
 public:
  virtual ~Engine() = default;

  // Call when a batch has just ended. An engine that restores the state continues after that batch,
  // exactly as this one would; it repeats steps that are in progress.
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
  // Whether next() would return the report, or the reduction before it.
  virtual bool isReportNext() const { return false; }
  // Reports that an action is done and used the device for `seconds`; the call may come much later
  // (a GPU's event). Actions of one kind must complete in the order in which next() returned them.
  // Throws the errors of receive() for messages that were deferred until an update.
  void complete(std::uint64_t token, Result result, double seconds);

  // Whether no batch is in progress. A training batch is in progress until its update is complete,
  // an evaluation batch until all of its actions are.
  bool batchDone() const { return open_.empty(); }
  std::size_t batchesInProgress() const { return open_.size(); }
  // The number of batches that have ended.
  std::uint64_t batchesEnded() const { return batchesEnded_; }
  // The batch that ended last. Requires batchesEnded() > 0.
  const BatchSeconds& ended() const { return *ended_; }
  // The number of steps whose update is complete on this side.
  std::uint64_t applied() const { return applied_; }

 protected:
  // `lanes`: sequences of micro-batches that are ordered on their own: one; or, for all links of a
  // server in their order, one per member of a cohort (EngineOptions::byMember).
  Engine(const EngineOptions& options, const StageRows& rows, std::size_t lanes = 1);

  virtual std::optional<Work> nextWork() = 0;
  virtual void finish(Work&& work, Result&& result, double seconds) = 0;

  // The batches in progress, oldest first: one, or up to D + 1 consecutive training batches.
  const std::deque<BatchSeconds>& open() const { return open_; }
  // Whether this batch may begin now.
  bool mayStart(const MicroBatch& at) const;
  void startBatch(const MicroBatch& at, const Share& share);
  // Ends the oldest batch, which is done.
  void endBatch();
  // Whether the oldest batch is a training batch all of whose scheduled actions are done.
  bool isOldestComputed() const;
  // The index in open() of the batch that a tensor belongs to; nullopt: none.
  std::optional<std::size_t> find(const Key& key) const;
  // Whether the result of this action is complete for micro-batch i of the batch.
  bool isComplete(ActionKind kind, std::size_t batch, std::uint32_t i) const;
  // Whether this flow is an input of the engine's actions.
  bool isInput(Flow flow) const { return lanes_.front().isInput(flow); }
  // Whether all scheduled actions of the oldest batches are done.
  bool areComputed(std::size_t batches) const;
  // The weights with which the batch is computed.
  std::uint64_t versionOf(const MicroBatch& at) const {
    return at.phase == Phase::train ? versionFor(at.step, options_.staleness) : applied_;
  }

  // A scheduled action that is ready.
  std::optional<Work> nextOfStage();
  // The tensors that a completed scheduled action sends.
  std::vector<TensorMessage> finishOfStage(const Work& work, Result&& result);
  // Work on the oldest batch in progress, or, if there is none, on the one that ended last.
  Work workOf(ActionKind kind, Input input = {}) const;

  // Throws ProtocolError.
  [[noreturn]] static void refuse(std::string code, const std::string& sentence);
  static std::string stepText(Phase phase, std::uint64_t step);  // "train step 3"
  // Throw ProtocolError "bad-key". `share`: the micro-batches that the peer may send.
  static void checkAgainstBatch(const TensorMessage& message, const Division& batch,
                                const Share& share);
  // `batch`: an index in open().
  void store(TensorMessage&& message, std::size_t batch);

  const EngineOptions options_;
  std::uint64_t applied_ = 0;
  std::uint64_t evaluated_ = 0;  // the last evaluation batch that began

 private:
  std::size_t laneOf(const MicroBatch& at) const {
    return lanes_.size() == 1 ? 0 : at.batch.memberOf(at.i);
  }
  // The micro-batches of a batch that belong to a lane.
  Share shareOf(const BatchSeconds& batch, std::size_t lane) const;
  // The number of micro-batches of these oldest batches in a lane: the next batch's first one.
  std::uint32_t sequenceIndex(std::size_t lane, std::size_t batches) const;
  // The number of micro-batch i, which the engine computes, in its lane.
  std::uint32_t sequenceIndex(std::size_t lane, std::size_t batch, std::uint32_t i) const {
    return sequenceIndex(lane, batch) + shareOf(open_[batch], lane).position(i);
  }

  std::deque<StageEngine> lanes_;
  std::deque<BatchSeconds> open_;
  std::optional<BatchSeconds> ended_;
  std::uint64_t batchesEnded_ = 0;
  std::map<std::uint64_t, Work> running_;  // actions in progress, without their tensors
  std::uint64_t nextToken_ = 1;
};

}  // namespace cleave
