#include "common/engine/coordinator.h"

#include <algorithm>
#include <cassert>
#include <stdexcept>
#include <string>
#include <utility>

namespace cleave {
namespace {

std::vector<Place> placesOf(const std::vector<BodyPeer>& bodies) {
  std::vector<Place> places;
  for (const BodyPeer& body : bodies) places.push_back(body.place);
  return places;
}

std::vector<Replica> replicasOf(const std::vector<BodyPeer>& bodies) {
  std::vector<Replica> replicas;
  for (const BodyPeer& body : bodies) replicas.push_back(body.replica);
  return replicas;
}

// The flow that a body must have received before it can send this one.
Flow requestOf(Flow flow, const Place& body) {
  return isActivation(flow) ? activationAt(body.firstCut) : gradientAt(body.lastCut);
}

}  // namespace

Coordinator::Coordinator(const EngineOptions& options, const std::vector<BodyPeer>& bodies,
                         StepFetch stepFetch)
    : Engine(options, clientRows(placesOf(bodies))),
      stepFetch_(std::move(stepFetch)),
      all_(placeOfAll(placesOf(bodies))),
      bodies_(replicasOf(bodies)) {
  for (const BodyPeer& body : bodies) {
    Peer& peer = peers_.emplace_back();
    peer.place = body.place;
    peer.link = body.link;
    peer.replica = body.replica;
    peer.weightsInPlace = !options.initialWeights && !options.resumes;
  }
}

void Coordinator::begin(const MicroBatch& at) {
  assert(mayBegin(at) && weightsInPlace());
  const bool isOnly = batchDone();
  startBatch(at, at.batch.shareOfMember(options_.member.value_or(0)));
  traffic_.emplace_back(peers_.size());
  assert(traffic_.size() == open().size());
  if (isOnly) {
    state_ = State::running;
    if (at.phase == Phase::eval) return;
    bodies_.forgetTaken();
    for (Peer& peer : peers_) peer.blob.reset();
  }
  for (const auto& [from, done] : std::exchange(early_, {})) receiveBodyDone(from, done);
}

void Coordinator::fetch(Flow flow, std::size_t body) {
  Peer& peer = peers_[body];
  if (!batchDone() || peer.fetching) throw std::logic_error("a Fetch in the middle of a batch");
  peer.blob.reset();
  peer.fetching = flow;
  peer.link->send(Fetch{flow});
}

void Coordinator::sendWeights(SharedBytes weights, std::size_t body) {
  assert(options_.initialWeights && !peers_[body].weightsInPlace);
  peers_[body].link->send(Blob{kWeightsBody, {weights->data(), weights->size()}, weights, true});
}

void Coordinator::resume(const EngineState& state) {
  assert(options_.resumes);
  restore(state);
  for (Peer& peer : peers_) peer.link->send(Resume{state.applied});
}

bool Coordinator::weightsInPlace() const {
  return std::all_of(peers_.begin(), peers_.end(),
                     [](const Peer& peer) { return peer.weightsInPlace; });
}

void Coordinator::restore(const EngineState& state) {
  Engine::restore(state);
  bodies_.restore(state.applied);
}

// ---- Incoming messages ----

void Coordinator::receive(std::size_t peer, Message message) {
  if (auto* tensor = std::get_if<TensorMessage>(&message)) {
    receiveTensor(peer, std::move(*tensor));
  } else if (const auto* done = std::get_if<BodyDone>(&message)) {
    receiveBodyDone(peer, *done);
  } else if (const auto* ok = std::get_if<StepOk>(&message)) {
    receiveStepOk(peer, *ok);
  } else if (auto* blob = std::get_if<Blob>(&message)) {
    receiveBlob(peer, std::move(*blob));
  } else if (const auto* decision = std::get_if<StepDecision>(&message); decision && obeys()) {
    receiveStep(peer, *decision);
  } else {
    refuse("unexpected-message", "received a message that only the client may send");
  }
}

// With edges, a body's reply may answer what the client has sent to another body.
Coordinator::Traffic& Coordinator::trafficOf(std::size_t batch, std::size_t peer) {
  return traffic_[batch][options_.hasEdges ? 0 : peer];
}

// The place whose tensors the client exchanges with the bodies.
const Place& Coordinator::servedPlace(const Peer& peer) const {
  return options_.hasEdges ? all_ : peer.place;
}

void Coordinator::receiveTensor(std::size_t from, TensorMessage&& message) {
  const Key key = message.key();
  const Peer& peer = peers_[from];
  const Place& place = servedPlace(peer);
  if (!peer.place.contains(key.flow) || !place.contains(key.flow) || place.isUp(key.flow)) {
    refuse("bad-key", toString(key) + " cannot come from this server");
  }
  const auto batch = find(key);
  if (!batch) refuse("bad-key", toString(key) + " does not belong to a step in progress");
  const BatchSeconds& begun = open()[*batch];
  const Share share = peer.replica.shareOf(begun.share);
  checkAgainstBatch(message, begun.at.batch, share);
  if (const std::uint64_t version = versionOf(message.at); message.weightVersion != version) {
    refuse("bad-key", toString(key) + " was computed after " +
                          std::to_string(message.weightVersion) +
                          " steps, but must be computed after " + std::to_string(version));
  }
  Traffic& traffic = trafficOf(*batch, from);
  const bool possible = isActivation(key.flow) || key.phase == Phase::train;
  const std::uint32_t position = share.position(key.i);
  if (!possible || position >= traffic.sent.get(requestOf(key.flow, place))) {
    refuse("bad-key", toString(key) + " arrived before it was requested");
  }
  const bool isPassedOn = !isInput(key.flow);
  if (isPassedOn && position != traffic.passedOn[key.flow]++) {
    refuse("bad-key", toString(key) + " arrived twice, or out of order");
  }
  if (!isPassedOn) return store(std::move(message), *batch);
  sendTensor(std::move(message));
}

void Coordinator::receiveBodyDone(std::size_t from, const BodyDone& done) {
  const Peer& peer = peers_[from];
  const auto batch = find({Phase::train, done.step, 0, {}});
  const std::uint64_t before = bodies_.lastReported(from);
  if (!batch && options_.member && done.step > before &&
      early_.size() < peers_.size() * (options_.staleness + 2)) {
    early_.emplace_back(from, done);
    return;
  }
  if (!batch || done.step != before + 1) {
    refuse("bad-key", "BodyDone of step " + std::to_string(done.step) + " arrived " +
                          (done.step <= before ? "twice" : "in another step"));
  }
  for (const InsertBasis& basis : done.report.bases) {
    if (static_cast<int>(basis.cut) == peer.place.lastCut) continue;
    refuse("bad-tensor", "a basis for cut " + std::to_string(basis.cut) +
                             " arrived, but this server has no encoder there");
  }
  // The flow that the body's last action needs.
  const Place& place = servedPlace(peer);
  const Flow gradient = gradientAt(place.lastCut);
  const bool hasGradient = peer.place.contains(gradientAt(peer.place.lastCut));
  const Flow last = hasGradient ? gradient : activationAt(place.firstCut);
  const std::uint32_t all = peer.replica.shareOf(open()[*batch].share).count;
  if (trafficOf(*batch, from).sent.get(last) != all) {
    refuse("unexpected-message", "BodyDone of step " + std::to_string(done.step) +
                                     " arrived before all of " + flowName(last) + " was sent");
  }
  bodies_.reported(from, done);
  fetchForStep(from);
}

std::optional<Flow> Coordinator::flowOfStep(std::uint64_t step) const {
  return stepFetch_ ? stepFetch_(step) : std::nullopt;
}

// Call after each BodyDone, StepOk and answer to a Fetch. Fetches what StepFetch wants of a step
// once the body has reported on it and has confirmed the step before.
void Coordinator::fetchForStep(std::size_t from) {
  Peer& peer = peers_[from];
  const BodyDone* const done = bodies_.next(from);
  const bool isNext = done != nullptr && done->step == bodies_.lastApplied(from) + 1;
  if (!isNext || peer.fetching || peer.hasStepBlob) return;
  const std::optional<Flow> flow = flowOfStep(done->step);
  if (!flow) return;
  peer.blob.reset();
  peer.fetching = *flow;
  peer.fetchesForStep = true;
  peer.link->send(Fetch{*flow});
}

void Coordinator::receiveStepOk(std::size_t from, const StepOk& ok) {
  Peer& peer = peers_[from];
  std::uint64_t decided = decision_ ? decision_->step : applied_;
  // Another server's StepOk may overtake the Step that the first one passes on.
  if (obeys() && sum_ != Sum::none) decided = applied_ + 1;
  if (ok.step > decided) {
    refuse("step-gap", "StepOk " + std::to_string(ok.step) + " arrived, but step " +
                           std::to_string(decided) + " was the last decided");
  }
  if (ok.step == applied_ && !peer.weightsInPlace) {
    peer.weightsInPlace = true;
    return;
  }
  if (const std::uint64_t last = bodies_.lastApplied(from); ok.step <= last) {
    refuse("bad-key",
           "StepOk " + std::to_string(ok.step) + " arrived after StepOk " + std::to_string(last));
  }
  bodies_.applied(from, ok);
  fetchForStep(from);
}

void Coordinator::receiveStep(std::size_t from, const StepDecision& decision) {
  if (from != 0 || obeyed_ || sum_ < Sum::requested || decision.step != applied_ + 1) {
    refuse("step-gap", "Step " + std::to_string(decision.step) +
                           " arrived before this member's part was sent, twice, or from "
                           "another server");
  }
  obeyed_ = decision;
}

void Coordinator::receiveBlob(std::size_t from, Blob&& blob) {
  if (blob.flow == kSumsClient && from == 0 && sum_ == Sum::requested) {
    sums_ = std::move(blob);
    sum_ = Sum::arrived;
    return;
  }
  Peer& peer = peers_[from];
  if (peer.fetching != blob.flow) {
    refuse("unexpected-message", flowName(blob.flow) + " arrived without a Fetch");
  }
  peer.fetching.reset();
  peer.hasStepBlob = std::exchange(peer.fetchesForStep, false);
  peer.blob = std::move(blob);
  fetchForStep(from);
}

// ---- Actions ----

// Sends to the body that receives the flow, or to the replica that computes the micro-batch, which
// receives the tensors of a flow in order.
void Coordinator::sendTensor(TensorMessage&& message) {
  const Flow flow = message.flow;
  const auto taker = std::find_if(peers_.begin(), peers_.end(), [&](const Peer& peer) {
    return peer.place.contains(flow) && peer.place.isUp(flow) &&
           peer.replica.computes(message.at.i);
  });
  assert(taker != peers_.end());
  const auto to = static_cast<std::size_t>(taker - peers_.begin());
  trafficOf(*find(message.key()), to).early[flow].emplace(message.at.i, std::move(message));
  sendInOrder(to, flow);
}

// Sends what the peer may receive now. One replica of a body may be ahead of another, even by a
// step.
void Coordinator::sendInOrder(std::size_t to, Flow flow) {
  for (std::size_t batch = 0; batch < open().size(); ++batch) {
    const Share share = peers_[to].replica.shareOf(open()[batch].share);
    Traffic& traffic = trafficOf(batch, to);
    std::uint32_t& sent = traffic.sent[flow];
    auto& early = traffic.early[flow];
    for (; !early.empty() && early.begin()->first == share.at(sent); ++sent) {
      peers_[to].link->send(std::move(early.extract(early.begin()).mapped()));
    }
    if (sent < share.count) return;
  }
}

// In a cohort: the export of this member's part, or the import of the sum.
std::optional<Work> Coordinator::nextOfSum() {
  if (!options_.member || !(isEvaluated() || isOldestComputed())) return std::nullopt;
  if (sum_ == Sum::none) {
    sum_ = Sum::exporting;
    return workOf(ActionKind::exportBlob, kPartsClient);
  }
  if (sum_ != Sum::arrived) return std::nullopt;
  sum_ = Sum::importing;
  return workOf(ActionKind::importBlob, std::move(sums_));
}

// Whether an evaluation batch is in progress all of whose scheduled actions are done.
bool Coordinator::isEvaluated() const {
  return !open().empty() && open().front().at.phase == Phase::eval && areComputed(1);
}

bool Coordinator::isCheckpointOrdered() const { return obeyed_ && obeyed_->checkpoint; }

// Takes the decision that has arrived. All members have the same gradients and reports, so theirs
// differ only in what the deciding member alone knows: when a checkpoint is due.
void Coordinator::obey() {
  StepDecision own = *std::exchange(decision_, std::exchange(obeyed_, std::nullopt));
  own.checkpoint = decision_->checkpoint;
  own.keep = decision_->keep;
  own.bases = decision_->bases;
  if (own == *decision_) return;
  throw ProtocolError("members-differ",
                      "the first member of the cohort decides on step " + std::to_string(own.step) +
                          " otherwise than this one does from the same gradients",
                      "use the same configuration and version of Cleave for all members");
}

bool Coordinator::mayDecide() const {
  return isOldestComputed() && bodies_.areComplete() &&
         (!options_.member || sum_ == Sum::inPlace) && (!obeys() || obeyed_) &&
         (!flowOfStep(applied_ + 1) || std::ranges::all_of(peers_, &Peer::hasStepBlob));
}

Work Coordinator::beginDecision() {
  assert(state_ == State::running && mayDecide());
  decided_ = bodies_.take();
  for (Peer& peer : peers_) peer.hasStepBlob = false;
  state_ = State::deciding;
  return workOf(ActionKind::decide, decided_);
}

std::optional<Work> Coordinator::nextWork() {
  if (state_ == State::running) {
    if (auto work = nextOfSum()) return work;
    if (mayDecide()) return beginDecision();
  }
  if (state_ == State::decided) {
    assert(decision_->step == applied_ + 1);
    state_ = State::updating;
    return workOf(ActionKind::update, *decision_);
  }
  return nextOfStage();
}

void Coordinator::endOldest() {
  assert(traffic_.size() == open().size());
  if (open().front().at.phase == Phase::train) reports_ = decided_;
  sum_ = Sum::none;
  endBatch();
  traffic_.pop_front();
  state_ = batchDone() ? State::idle : State::running;
}

// The decision, without the bases of decoders that are not this body's.
StepDecision Coordinator::decisionFor(const Place& body) const {
  StepDecision decision = *decision_;
  std::erase_if(decision.bases, [&](const InsertBasis& basis) {
    return static_cast<int>(basis.cut) != body.firstCut;
  });
  return decision;
}

void Coordinator::finish(Work&& work, Result&& result, double) {
  switch (work.kind) {
    case ActionKind::decide:
      assert(state_ == State::deciding);
      decision_ = std::get<StepDecision>(result);
      if (obeys()) obey();
      assert(decision_->step == applied_ + 1);
      state_ = State::decided;
      if (obeys()) return;
      for (Peer& peer : peers_) peer.link->send(decisionFor(peer.place));
      return;
    case ActionKind::exportBlob: {
      const auto bytes = std::get<SharedBytes>(std::move(result));
      assert(sum_ == Sum::exporting);
      sum_ = Sum::requested;
      peers_.front().link->send(Blob{kPartsClient, {bytes->data(), bytes->size()}, bytes, true});
      return;
    }
    case ActionKind::importBlob:
      assert(sum_ == Sum::importing);
      sum_ = Sum::inPlace;
      if (isEvaluated()) endOldest();
      return;
    case ActionKind::update:
      assert(state_ == State::updating);
      applied_ = decision_->step;
      endOldest();
      for (Peer& peer : peers_) peer.link->commit(applied_);
      return;
    default:
      for (TensorMessage& message : finishOfStage(work, std::move(result))) {
        sendTensor(std::move(message));
      }
      if (isEvaluated() && !options_.member) endOldest();
  }
}

}  // namespace cleave
