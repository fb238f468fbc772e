// The engine of a client: starts batches, runs head and tail, passes tensors from one body to the
// next, and either decides each step for all parts, or obeys the Step of the member that does.
//
// clang-format off
//   from       to         when                                          action, what is sent
//   idle       running    begin()
//   running    idle       eval: every action is complete
//   running    deciding   train: every action is complete, every body   Decide
//                         has reported (and sent its gradients); if
//                         the client obeys: and Step has arrived from
//                         the first server
//   deciding   decided    Decide is complete                            Step to every body, unless
//                                                                       the client obeys
//   decided    updating   immediately                                   Update
//   updating   idle       Update is complete                            link: commit
//   updating   running    the same, if a later step is in progress      link: commit
// clang-format on
//
// In a cohort, the gradients of heads and tails are added before, too. When every action of its
// step is complete, a member exports its part and sends it to the first server. The sum that
// arrives from there replaces its gradients. Every member runs Decide; those that obey apply the
// Step that arrives. An evaluation batch ends with such a sum too, of the metrics.
//
// With staleness D, the table describes the oldest step; the actions of up to D later steps run at
// the same time.
//
// The order matters in one place: Step is sent before our own Update, so that the bodies update at
// the same time. The client forwards the tensors that one body sends to the next, unless the bodies
// have direct links (EngineOptions::hasEdges). They are then one long body for it.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/engine/body_reports.h"
#include "common/engine/engine.h"

namespace cleave {

// The client's connection to a body, or to one of its replicas. A link to a replica carries only
// the replica's micro-batches.
struct BodyPeer {
  Place place;
  std::shared_ptr<EngineLink> link;
  Replica replica = {};
};

// What is fetched from every body before this step is decided: grads/body, or the weights/body that
// the step was computed with; nullopt: nothing. May be called several times for a step.
using StepFetch = std::function<std::optional<Flow>(std::uint64_t step)>;

class Coordinator : public Engine {
 public:
  // `bodies`: in model order, and the replicas of a body in rank order; a body's index is the
  // `peer` argument of receive(). `stepFetch`: empty: nothing is fetched before a step is decided.
  Coordinator(const EngineOptions& options, const std::vector<BodyPeer>& bodies,
              StepFetch stepFetch = nullptr);

  // Whether begin() may start this batch: no other one is in progress, or, with staleness, fewer
  // than D + 1 training steps are.
  bool mayBegin(const MicroBatch& at) const { return mayStart(at); }
  // Starts a batch. Requires mayBegin() and weightsInPlace(). The batch has at least one
  // micro-batch per replica; `at.i` is not used. A member of a cohort computes its own samples, and
  // may have none.
  void begin(const MicroBatch& at);
  // Requests weights/body or trace/body; blob() returns the answer. Requires batchDone().
  void fetch(Flow flow, std::size_t body = 0);
  // Sends a body's initial weights, a safetensors file. Requires EngineOptions::initialWeights; no
  // batch can start before weightsInPlace().
  void sendWeights(SharedBytes weights, std::size_t body = 0);
  // Continues from a checkpoint after this side has restored its own part. Requires
  // EngineOptions::resumes; no batch can start before weightsInPlace().
  void resume(const EngineState& state);
  // Whether every body has its weights: received, restored from a checkpoint, or initialized by the
  // server.
  bool weightsInPlace() const;

  void receive(std::size_t peer, Message message) override;
  // Every body must have been restored to the same step.
  void restore(const EngineState& state) override;

  // The answer to the last Fetch (including that of the step being decided); empty until it
  // arrives, and empty again when the next training batch starts while no batch is in progress.
  const std::optional<Blob>& blob(std::size_t body = 0) const { return peers_[body].blob; }
  // Whether a step is decided but not yet applied here.
  bool updatePending() const { return state_ == State::decided || state_ == State::updating; }
  // Within the action Decide: whether the Step that this member obeys asks for a checkpoint.
  bool isCheckpointOrdered() const;
  // The last step that every body has confirmed.
  std::uint64_t appliedByPeers() const { return bodies_.appliedByAll(); }
  // The body's report on the step that was decided last, or is being decided.
  const std::optional<BodyDone>& bodyDone(std::size_t body = 0) const {
    return bodies_.taken(body);
  }
  // The reports of all bodies on the training step that ended last, in the order of the model;
  // empty before the first one. See BodyReports::take().
  const std::vector<BodyDone>& reports() const { return reports_; }

 private:
  enum class State { idle, running, deciding, decided, updating };
  // Of the gradients of the members' heads and tails, or of their metrics, in the oldest batch.
  enum class Sum { none, exporting, requested, arrived, importing, inPlace };
  struct Peer {
    Place place;
    std::shared_ptr<EngineLink> link;
    Replica replica;
    bool weightsInPlace = true;
    std::optional<Flow> fetching;
    bool fetchesForStep = false;  // see StepFetch
    bool hasStepBlob = false;     // `blob` is that of the oldest step, see StepFetch
    std::optional<Blob> blob;
  };

  struct Traffic {
    // Per flow, the number of micro-batches that have been sent to the peer. A body's answer to a
    // micro-batch that was not sent is a protocol error.
    FlowMap<std::uint32_t> sent;
    // Per flow, those that the peer must not receive yet, by i: one before them has not arrived
    // from another replica of the neighbouring body.
    FlowMap<std::map<std::uint32_t, TensorMessage>> early;
    // Per flow, the number of micro-batches from the peer that were forwarded to the next body.
    FlowMap<std::uint32_t> passedOn;
  };

  Traffic& trafficOf(std::size_t batch, std::size_t peer);
  const Place& servedPlace(const Peer& peer) const;
  void receiveTensor(std::size_t from, TensorMessage&& message);
  void receiveBodyDone(std::size_t from, const BodyDone& done);
  std::optional<Flow> flowOfStep(std::uint64_t step) const;
  void fetchForStep(std::size_t peer);
  void receiveStepOk(std::size_t from, const StepOk& ok);
  void receiveStep(std::size_t from, const StepDecision& decision);
  void receiveBlob(std::size_t from, Blob&& blob);
  bool obeys() const { return options_.member.value_or(0) > 0; }
  void sendTensor(TensorMessage&& message);
  void sendInOrder(std::size_t to, Flow flow);
  void endOldest();
  std::optional<Work> nextOfSum();
  bool isEvaluated() const;
  bool mayDecide() const;
  void obey();
  Work beginDecision();
  StepDecision decisionFor(const Place& body) const;

  std::optional<Work> nextWork() override;
  void finish(Work&& work, Result&& result, double seconds) override;

  const StepFetch stepFetch_;
  const Place all_;  // from the first body to the last one
  std::vector<Peer> peers_;
  BodyReports bodies_;
  // In a cohort: reports on steps that this member has not begun, because they need none of its
  // samples.
  std::deque<std::pair<std::size_t, BodyDone>> early_;
  State state_ = State::idle;
  Sum sum_ = Sum::none;
  Blob sums_;                                 // if it has arrived
  std::optional<StepDecision> obeyed_;        // the Step that has arrived and is not applied
  std::optional<StepDecision> decision_;      // the last one
  std::deque<std::vector<Traffic>> traffic_;  // of each batch in open(), by peer; see trafficOf()
  std::vector<BodyDone> decided_, reports_;   // on the step decided last, and on the one ended last
};

}  // namespace cleave
