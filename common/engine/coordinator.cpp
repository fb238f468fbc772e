#include "common/engine/coordinator.h"

#include <algorithm>
#include <cassert>
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
    : Engine(options, clientRows(placesOf(bodies))), fetchGradients_(fetchGradients) {
  for (const BodyPeer& body : bodies) {
    peers_.push_back(
        {body.place, body.link, {}, 0, !options.initialWeights && !options.resumes, {}, {}});
  }
}

void Coordinator::begin(const MicroBatch& at) {
  assert(batchDone() && weightsInPlace());
  assert(at.phase == Phase::eval || at.step == applied_ + 1);
  startBatch(at);
  state_ = State::running;
  sent_ = {};
  passedOn_ = {};
  if (at.phase == Phase::eval) return;
  for (Peer& peer : peers_) {
    peer.done.reset();
    peer.blob.reset();
  }
}

void Coordinator::fetch(Flow flow, std::size_t body) {
  Peer& peer = peers_[body];
  assert(batchDone() && !peer.fetching);
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
  for (Peer& peer : peers_) peer.applied = state.applied;
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
    receiveBodyDone(peers_[peer], *done);
  } else if (const auto* ok = std::get_if<StepOk>(&message)) {
    receiveStepOk(peers_[peer], *ok);
  } else if (auto* blob = std::get_if<Blob>(&message)) {
    receiveBlob(peers_[peer], std::move(*blob));
  } else {
    refuse("unexpected-message", "received a message that only the client may send");
  }
}

void Coordinator::receiveTensor(std::size_t from, TensorMessage&& message) {
  const Key key = message.key();
  const Place& place = peers_[from].place;
  if (!place.contains(key.flow) || place.isUp(key.flow)) {
    refuse("bad-key", toString(key) + " cannot come from this server");
  }
  if (!isCurrent(key)) refuse("bad-key", toString(key) + " does not belong to the current step");
  checkAgainstBatch(message);
  if (message.weightVersion != applied_) {
    refuse("bad-key", toString(key) + " was computed after " +
                          std::to_string(message.weightVersion) + " steps, but " +
                          std::to_string(applied_) + " are applied here");
  }
  const bool possible = isActivation(key.flow) || isTrain();
  if (!possible || key.i >= sent_.get(requestOf(key.flow, place))) {
    refuse("bad-key", toString(key) + " arrived before it was requested");
  }
  if (stage_.isInput(key.flow)) return store(std::move(message));
  if (key.i != passedOn_[key.flow]++) {
    refuse("bad-key", toString(key) + " arrived twice, or out of order");
  }
  sendTensor(std::move(message));
}

void Coordinator::receiveBodyDone(Peer& peer, const BodyDone& done) {
  const bool running = batch() && isTrain() && done.step == batch()->step;
  if (!running || peer.done) {
    refuse("bad-key", "BodyDone of step " + std::to_string(done.step) + " arrived " +
                          (running ? "twice" : "in another step"));
  }
  // The flow that the body's last action needs.
  const Flow gradient = gradientAt(peer.place.lastCut);
  const Flow last = peer.place.contains(gradient) ? gradient : activationAt(peer.place.firstCut);
  if (sent_.get(last) != batch()->microBatches) {
    refuse("unexpected-message", "BodyDone of step " + std::to_string(done.step) +
                                     " arrived before all of " + flowName(last) + " was sent");
  }
  peer.done = done;
  if (fetchGradients_) {
    peer.fetching = kGradsBody;
    peer.link->send(Fetch{kGradsBody});
  }
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
}

void Coordinator::receiveBlob(Peer& peer, Blob&& blob) {
  if (peer.fetching != blob.flow) {
    refuse("unexpected-message", flowName(blob.flow) + " arrived without a Fetch");
  }
  peer.fetching.reset();
  peer.blob = std::move(blob);
}

// ---- Actions ----

// Sends to the body that receives the flow.
void Coordinator::sendTensor(TensorMessage&& message) {
  const Flow flow = message.flow;
  const auto taker = std::find_if(peers_.begin(), peers_.end(), [&](const Peer& peer) {
    return peer.place.contains(flow) && peer.place.isUp(flow);
  });
  assert(taker != peers_.end());
  if (flow.tensor == 0) ++sent_[flow];
  taker->link->send(std::move(message));
}

bool Coordinator::mayDecide() const {
  return stage_.isDone() && std::all_of(peers_.begin(), peers_.end(), [this](const Peer& peer) {
           return peer.done && (!fetchGradients_ || peer.blob);
         });
}

std::vector<BodyDone> Coordinator::reports() const {
  std::vector<BodyDone> reports;
  for (const Peer& peer : peers_) reports.push_back(peer.done.value());
  return reports;
}

Work Coordinator::beginDecision() {
  state_ = State::deciding;
  return workOf(ActionKind::decide, reports());
}

std::optional<Work> Coordinator::nextWork() {
  switch (state_) {
    case State::running:
      return isTrain() && mayDecide() ? beginDecision() : nextOfStage();
    case State::decided:
      state_ = State::updating;
      return workOf(ActionKind::update, *decision_);
    default:
      return std::nullopt;
  }
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
      state_ = State::idle;
      for (Peer& peer : peers_) peer.link->commit(applied_);
      return;
    default:
      for (TensorMessage& message : finishOfStage(work, std::move(result))) {
        sendTensor(std::move(message));
      }
      if (!isTrain() && stage_.isDone()) state_ = State::idle;
  }
}

}  // namespace cleave
