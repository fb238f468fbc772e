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

// The flow that a body must have received before it can send this one.
Flow requestOf(Flow flow, const Place& body) {
  return isActivation(flow) ? activationAt(body.firstCut) : gradientAt(body.lastCut);
}

}  // namespace

Coordinator::Coordinator(const EngineOptions& options, const std::vector<BodyPeer>& bodies,
                         bool fetchGradients)
    : Engine(options, clientRows(placesOf(bodies))),
      fetchGradients_(fetchGradients),
      all_(placeOfAll(placesOf(bodies))) {
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
  startBatch(at);
  traffic_.emplace_back(peers_.size());
  if (!isOnly) return;
  state_ = State::running;
  if (at.phase == Phase::eval) return;
  for (Peer& peer : peers_) {
    peer.decided.reset();
    peer.blob.reset();
  }
}

void Coordinator::fetch(Flow flow, std::size_t body) {
  Peer& peer = peers_[body];
  if (!batchDone() || peer.fetching) throw std::logic_error("a Fetch in the middle of a batch");
  peer.blob.reset();
  peer.fetching = flow;
  peer.link->send(Fetch{flow});
}

void Coordinator::sendWeights(SharedBytes weights, std::size_t body) {
  assert(options_.initialWeights);
  peers_[body].link->send(Blob{kWeightsBody, {weights->data(), weights->size()}, weights});
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
  for (Peer& peer : peers_) peer.applied = peer.reported = state.applied;
}

std::uint64_t Coordinator::appliedByPeers() const {
  std::uint64_t applied = peers_.front().applied;
  for (const Peer& peer : peers_) applied = std::min(applied, peer.applied);
  return applied;
}

// ---- Incoming messages ----

void Coordinator::receive(std::size_t peer, Message message) {
  if (auto* tensor = std::get_if<TensorMessage>(&message)) {
    receiveTensor(peer, std::move(*tensor));
  } else if (const auto* done = std::get_if<BodyDone>(&message)) {
    receiveBodyDone(peer, *done);
  } else if (const auto* ok = std::get_if<StepOk>(&message)) {
    receiveStepOk(peers_[peer], *ok);
  } else if (auto* blob = std::get_if<Blob>(&message)) {
    receiveBlob(peers_[peer], std::move(*blob));
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
  const MicroBatch& whole = open()[*batch].at;
  checkAgainstBatch(message, whole.batch.shareOf(peer.replica));
  if (const std::uint64_t version = versionOf(message.at); message.weightVersion != version) {
    refuse("bad-key", toString(key) + " was computed after " +
                          std::to_string(message.weightVersion) +
                          " steps, but must be computed after " + std::to_string(version));
  }
  Traffic& traffic = trafficOf(*batch, from);
  const bool possible = isActivation(key.flow) || key.phase == Phase::train;
  if (!possible || key.i >= traffic.sent.get(requestOf(key.flow, place))) {
    refuse("bad-key", toString(key) + " arrived before it was requested");
  }
  const bool isPassedOn = !stage_.isInput(key.flow);
  if (isPassedOn && key.i != traffic.passedOn[key.flow]++) {
    refuse("bad-key", toString(key) + " arrived twice, or out of order");
  }
  message.at = whole;
  message.at.i = peer.replica.numberInBatch(key.i);
  if (!isPassedOn) return store(std::move(message), *batch);
  sendTensor(std::move(message));
}

void Coordinator::receiveBodyDone(std::size_t from, const BodyDone& done) {
  Peer& peer = peers_[from];
  const auto batch = find({Phase::train, done.step, 0, {}});
  if (!batch || done.step != peer.reported + 1) {
    refuse("bad-key", "BodyDone of step " + std::to_string(done.step) + " arrived " +
                          (done.step <= peer.reported ? "twice" : "in another step"));
  }
  // The flow that the body's last action needs.
  const Place& place = servedPlace(peer);
  const Flow gradient = gradientAt(place.lastCut);
  const bool hasGradient = peer.place.contains(gradientAt(peer.place.lastCut));
  const Flow last = hasGradient ? gradient : activationAt(place.firstCut);
  const std::uint32_t all = open()[*batch].at.batch.shareOf(peer.replica).count;
  if (trafficOf(*batch, from).sent.get(last) != all) {
    refuse("unexpected-message", "BodyDone of step " + std::to_string(done.step) +
                                     " arrived before all of " + flowName(last) + " was sent");
  }
  peer.done.push_back(done);
  peer.reported = done.step;
  fetchGradientsOf(peer);
}

// Call after each BodyDone and StepOk. Fetches the gradients of a step once the body has reported
// on it and has confirmed the step before.
void Coordinator::fetchGradientsOf(Peer& peer) {
  const bool isNext = !peer.done.empty() && peer.done.front().step == peer.applied + 1;
  if (!fetchGradients_ || !isNext || peer.fetching || peer.hasGradients) return;
  peer.blob.reset();
  peer.fetching = kGradsBody;
  peer.link->send(Fetch{kGradsBody});
}

void Coordinator::receiveStepOk(Peer& peer, const StepOk& ok) {
  const std::uint64_t decided = decision_ ? decision_->step : applied_;
  if (ok.step > decided) {
    refuse("step-gap", "StepOk " + std::to_string(ok.step) + " arrived, but step " +
                           std::to_string(decided) + " was the last decided");
  }
  if (ok.step == applied_ && !peer.weightsInPlace) {
    peer.weightsInPlace = true;
    return;
  }
  if (ok.step <= peer.applied) {
    refuse("bad-key", "StepOk " + std::to_string(ok.step) + " arrived after StepOk " +
                          std::to_string(peer.applied));
  }
  peer.applied = ok.step;
  if (!peer.replica.isAlone()) {
    peer.updates.push_back(ok);
    checkSameWeights();
  }
  fetchGradientsOf(peer);
}

void Coordinator::receiveBlob(Peer& peer, Blob&& blob) {
  if (peer.fetching != blob.flow) {
    refuse("unexpected-message", flowName(blob.flow) + " arrived without a Fetch");
  }
  peer.fetching.reset();
  peer.hasGradients = blob.flow == kGradsBody;
  peer.blob = std::move(blob);
}

// ---- Actions ----

// Sends to the body that receives the flow, or to the replica that computes the micro-batch.
void Coordinator::sendTensor(TensorMessage&& message) {
  const Flow flow = message.flow;
  const auto taker = std::find_if(peers_.begin(), peers_.end(), [&](const Peer& peer) {
    return peer.place.contains(flow) && peer.place.isUp(flow) &&
           peer.replica.computes(message.at.i);
  });
  assert(taker != peers_.end());
  if (flow.tensor == 0) {
    const auto to = static_cast<std::size_t>(taker - peers_.begin());
    ++trafficOf(*find(message.key()), to).sent[flow];
  }
  message.at = message.at.inShareOf(taker->replica);
  taker->link->send(std::move(message));
}

bool Coordinator::mayDecide() const {
  return isOldestComputed() && std::all_of(peers_.begin(), peers_.end(), [this](const Peer& peer) {
           return !peer.done.empty() && (!fetchGradients_ || peer.hasGradients);
         });
}

Work Coordinator::beginDecision() {
  state_ = State::deciding;
  for (Peer& peer : peers_) {
    peer.decided = peer.done.front();
    peer.done.pop_front();
    peer.hasGradients = false;
  }
  return workOf(ActionKind::decide, decidedReports());
}

namespace {

[[noreturn]] void throwDiffers(std::size_t rank, const std::string& what, std::uint64_t step) {
  throw RunError("replicas-differ",
                 "replica " + std::to_string(rank) + " of the body has other " + what + " step " +
                     std::to_string(step) + " than replica 0",
                 "use the same version of Cleave, device and processor for all replicas");
}

// Replicas add the same gradients in the same order, so their reports must be bit-identical. NaNs
// may differ.
void checkSameReport(const GradientReport& first, const GradientReport& other, std::size_t rank,
                     std::uint64_t step) {
  if (first.finite == other.finite && (!first.finite || first.squareSum == other.squareSum)) {
    return;
  }
  throwDiffers(rank, "gradients in", step);
}

}  // namespace

// Call after each StepOk of a replica. Equal gradients do not imply equal weights, because
// gradients are equal after the reduction in any case.
void Coordinator::checkSameWeights() {
  const auto hasUpdate = [](const Peer& peer) { return !peer.updates.empty(); };
  if (!std::all_of(peers_.begin(), peers_.end(), hasUpdate)) return;
  const StepOk first = peers_.front().updates.front();
  for (Peer& peer : peers_) {
    if (peer.updates.front().weights != first.weights) {
      throwDiffers(peer.replica.rank, "weights after", first.step);
    }
    peer.updates.pop_front();
  }
}

// One report per body. Throws RunError "replicas-differ".
std::vector<BodyDone> Coordinator::decidedReports() const {
  std::vector<BodyDone> reports;
  for (const Peer& peer : peers_) {
    const BodyDone& done = peer.decided.value();
    if (peer.replica.rank == 0) {
      reports.push_back(done);
      reports.back().sumSeconds = done.reduceSeconds;
      continue;
    }
    BodyDone& body = reports.back();
    checkSameReport(body.report, done.report, peer.replica.rank, done.step);
    body.forwardSeconds += done.forwardSeconds;
    body.backwardSeconds += done.backwardSeconds;
    body.weightsSeconds += done.weightsSeconds;
    body.codecSeconds += done.codecSeconds;
    body.sumSeconds = std::min(body.sumSeconds, done.reduceSeconds);
    body.reduceSeconds = std::max(body.reduceSeconds, done.reduceSeconds);
    body.updateSeconds = std::max(body.updateSeconds, done.updateSeconds);
  }
  return reports;
}

std::optional<Work> Coordinator::nextWork() {
  if (state_ == State::running && mayDecide()) return beginDecision();
  if (state_ == State::decided) {
    state_ = State::updating;
    return workOf(ActionKind::update, *decision_);
  }
  return nextOfStage();
}

void Coordinator::endOldest() {
  if (open().front().at.phase == Phase::train) {
    reports_ = decidedReports();
  }
  endBatch();
  traffic_.pop_front();
  state_ = batchDone() ? State::idle : State::running;
}

void Coordinator::finish(Work&& work, Result&& result, double) {
  switch (work.kind) {
    case ActionKind::decide:
      decision_ = std::get<StepDecision>(result);
      assert(decision_->step == applied_ + 1);
      state_ = State::decided;
      for (Peer& peer : peers_) peer.link->send(*decision_);
      return;
    case ActionKind::update:
      applied_ = decision_->step;
      endOldest();
      for (Peer& peer : peers_) peer.link->commit(applied_);
      return;
    default:
      for (TensorMessage& message : finishOfStage(work, std::move(result))) {
        sendTensor(std::move(message));
      }
      if (work.at.phase == Phase::eval && stage_.isDone()) endOldest();
  }
}

}  // namespace cleave
