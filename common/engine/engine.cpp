#include "common/engine/engine.h"

#include <cassert>
#include <stdexcept>
#include <string>
#include <utility>

namespace cleave {
namespace {

[[noreturn]] void refuse(std::string code, const std::string& sentence) {
  throw ProtocolError(std::move(code), sentence);
}

std::string stepText(Phase phase, std::uint64_t step) {
  return std::string(phaseName(phase)) + " step " + std::to_string(step);
}

}  // namespace

Engine::Engine(const EngineOptions& options, EngineLink& link)
    : options_(options), link_(link), weightsInPlace_(!options.initialWeights) {}

std::uint32_t Engine::started(ActionKind kind) const { return batch_->started[indexOf(kind)]; }
std::uint32_t Engine::completed(ActionKind kind) const { return batch_->completed[indexOf(kind)]; }

bool Engine::hasArrived(Flow flow, std::uint32_t i) const {
  return batch_->arrived[indexOf(flow)][i];
}

bool Engine::isWaiting(Flow flow, std::uint32_t i) const {
  return batch_->waiting.contains({batch_->at.phase, batch_->at.step, i, flow});
}

std::optional<MicroBatch> Engine::batch() const {
  return batch_ ? std::optional(batch_->at) : std::nullopt;
}

void Engine::begin(const MicroBatch& at) {
  assert(options_.role == Role::client && batchDone() && weightsInPlace_);
  assert(at.phase == Phase::eval || at.step == applied_ + 1);
  startBatch(at);
  if (at.phase == Phase::train) {
    bodyDone_.reset();
    blob_.reset();
  }
}

void Engine::startBatch(const MicroBatch& at) {
  batch_.emplace();
  batch_->at = at;
  batch_->at.i = 0;
  for (auto& arrived : batch_->arrived) arrived.resize(at.microBatches);
  if (at.phase == Phase::eval) lastEval_ = at.step;
}

void Engine::fetch(Flow flow) {
  assert(options_.role == Role::client && batchDone() && !fetching_);
  blob_.reset();
  fetching_ = flow;
  link_.send(Fetch{flow});
}

void Engine::sendWeights(SharedBytes weights) {
  assert(options_.role == Role::client && options_.initialWeights);
  link_.send(Blob{Flow::weightsBody, {weights->data(), weights->size()}, weights});
}

// ---- Incoming messages ----

void Engine::receive(Message message) {
  // Between a decision and its update, the server handles no other message, since whatever comes
  // next is meant for the updated weights. Messages that arrive after the update queue behind those
  // that were deferred before it.
  if (options_.role == Role::server && (updatePending_ || !deferred_.empty())) {
    const std::size_t most = std::size_t{8} * options_.inFlight + 64;
    if (deferred_.size() >= most) {
      refuse("too-many-in-flight",
             "more than " + std::to_string(most) + " messages arrived before an update");
    }
    deferred_.push_back(std::move(message));
    return;
  }
  dispatch(std::move(message));
}

void Engine::dispatch(Message&& message) {
  const bool atServer = options_.role == Role::server;
  if (auto* blob = std::get_if<Blob>(&message)) {
    return atServer ? receiveWeights(std::move(*blob)) : receiveBlob(std::move(*blob));
  }
  if (atServer && !weightsInPlace_) {
    refuse("unexpected-message", "another message arrived before the initial weights were loaded");
  }
  if (auto* tensor = std::get_if<TensorMessage>(&message)) {
    atServer ? receiveAtServer(std::move(*tensor)) : receiveAtClient(std::move(*tensor));
  } else if (const auto* decision = std::get_if<StepDecision>(&message); decision && atServer) {
    receiveDecision(*decision);
  } else if (const auto* fetch = std::get_if<Fetch>(&message); fetch && atServer) {
    receiveFetch(*fetch);
  } else if (const auto* done = std::get_if<BodyDone>(&message); done && !atServer) {
    receiveBodyDone(*done);
  } else if (const auto* ok = std::get_if<StepOk>(&message); ok && !atServer) {
    receiveStepOk(*ok);
  } else {
    refuse("unexpected-message", "received a message that only the other side may send");
  }
}

void Engine::receiveAtServer(TensorMessage&& message) {
  const Key key = message.key();
  if (!isUp(message.flow)) refuse("bad-key", toString(key) + " cannot come from a client");
  const bool train = key.phase == Phase::train;
  const std::uint64_t finished = train ? applied_ : lastEval_;
  const bool current = batch_ && batch_->at.phase == key.phase && batch_->at.step == key.step;
  if (key.step <= finished && (train || !current)) {
    refuse("bad-key", toString(key) + " belongs to a finished step");
  }
  if (!current) {
    if (key.step != finished + 1) {
      refuse("step-gap", toString(key) + " arrived, but the last known step is " +
                             stepText(key.phase, finished));
    }
    if (message.flow != Flow::activation0) {
      refuse("bad-key", toString(key) + " arrived before any activation/0 of its step");
    }
    startServerBatch(message);
  }
  checkAgainstBatch(message);
  if (message.weightVersion != applied_) {
    refuse("bad-key", toString(key) + " is for weights after " +
                          std::to_string(message.weightVersion) + " steps, but " +
                          std::to_string(applied_) + " are applied");
  }
  if (message.flow == Flow::gradient1 && (!train || key.i >= completed(ActionKind::bodyForward))) {
    refuse("bad-key", toString(key) + " arrived before its activation/1 was sent");
  }
  store(std::move(message));
}

void Engine::startServerBatch(const TensorMessage& message) {
  const MicroBatch& at = message.at;
  if (!batchDone()) {
    refuse("unexpected-message", stepText(at.phase, at.step) + " begins while " +
                                     stepText(batch_->at.phase, batch_->at.step) +
                                     " is not finished");
  }
  if (at.samples == 0 || at.microBatches != microBatchCount(at.samples, options_.microBatches)) {
    refuse("bad-key", toString(message.key()) + " claims " + std::to_string(at.microBatches) +
                          " micro-batches of " + std::to_string(at.samples) +
                          " samples; the agreed number is " +
                          std::to_string(options_.microBatches) + " per batch");
  }
  startBatch(at);
}

void Engine::checkAgainstBatch(const TensorMessage& message) const {
  const MicroBatch& at = message.at;
  if (at.i >= batch_->at.microBatches || at.microBatches != batch_->at.microBatches ||
      at.samples != batch_->at.samples) {
    refuse("bad-key", toString(message.key()) + " does not fit a batch of " +
                          std::to_string(batch_->at.samples) + " samples in " +
                          std::to_string(batch_->at.microBatches) + " micro-batches");
  }
}

void Engine::receiveAtClient(TensorMessage&& message) {
  const Key key = message.key();
  if (isUp(message.flow)) refuse("bad-key", toString(key) + " cannot come from a server");
  const bool current = batch_ && batch_->at.phase == key.phase && batch_->at.step == key.step;
  if (!current) refuse("bad-key", toString(key) + " does not belong to the current step");
  checkAgainstBatch(message);
  const ActionKind asked =
      message.flow == Flow::activation1 ? ActionKind::headForward : ActionKind::tailStep;
  const bool possible = message.flow == Flow::activation1 || key.phase == Phase::train;
  if (!possible || key.i >= completed(asked)) {
    refuse("bad-key", toString(key) + " arrived before it was requested");
  }
  store(std::move(message));
}

void Engine::store(TensorMessage&& message) {
  const Key key = message.key();
  if (hasArrived(message.flow, key.i)) refuse("bad-key", toString(key) + " arrived twice");
  batch_->arrived[indexOf(message.flow)][key.i] = true;
  batch_->waiting.emplace(key, std::move(message.payload));
}

void Engine::receiveDecision(const StepDecision& decision) {
  if (decision.step != applied_ + 1) {
    refuse("step-gap", "Step " + std::to_string(decision.step) + " arrived, but " +
                           std::to_string(applied_) + " steps are applied");
  }
  if (batchDone() || !isTrain() || !batch_->reported) {
    refuse("unexpected-message",
           "Step " + std::to_string(decision.step) + " arrived before its BodyDone was sent");
  }
  decision_ = decision;
  updatePending_ = true;
  updateStarted_ = false;
}

void Engine::receiveFetch(const Fetch& fetch) {
  if (fetching_)
    refuse("unexpected-message", "a second Fetch arrived before the first was answered");
  const bool possible =
      fetch.flow == Flow::weightsBody ? batchDone() : !batchDone() && isTrain() && batch_->reported;
  if (!possible) {
    refuse("unexpected-message",
           "Fetch of " + std::string(flowName(fetch.flow)) +
               (fetch.flow == Flow::weightsBody ? " arrived in the middle of a batch"
                                                : " did not arrive between BodyDone and Step"));
  }
  fetching_ = fetch.flow;
  exportStarted_ = false;
}

void Engine::receiveBodyDone(const BodyDone& done) {
  const bool running = batch_ && isTrain() && done.step == batch_->at.step;
  if (!running || bodyDone_) {
    refuse("bad-key", "BodyDone of step " + std::to_string(done.step) + " arrived " +
                          (running ? "twice" : "in another step"));
  }
  if (!allCompleted(ActionKind::tailStep)) {
    refuse("unexpected-message", "BodyDone of step " + std::to_string(done.step) +
                                     " arrived before all gradients were sent");
  }
  bodyDone_ = done;
  if (options_.fetchGradients) {
    fetching_ = Flow::gradsBody;
    link_.send(Fetch{Flow::gradsBody});
  }
}

void Engine::receiveStepOk(const StepOk& ok) {
  const std::uint64_t decided = decision_ ? decision_->step : 0;
  if (ok.step > decided) {
    refuse("step-gap", "StepOk " + std::to_string(ok.step) + " arrived, but step " +
                           std::to_string(decided) + " was the last decided");
  }
  if (ok.step == 0 && !weightsInPlace_) {
    weightsInPlace_ = true;
    return;
  }
  if (ok.step <= appliedByPeer_) {
    refuse("bad-key", "StepOk " + std::to_string(ok.step) + " arrived after StepOk " +
                          std::to_string(appliedByPeer_));
  }
  appliedByPeer_ = ok.step;
}

void Engine::receiveBlob(Blob&& blob) {
  if (fetching_ != blob.flow) {
    refuse("unexpected-message", std::string(flowName(blob.flow)) + " arrived without a Fetch");
  }
  fetching_.reset();
  blob_ = std::move(blob);
}

void Engine::receiveWeights(Blob&& blob) {
  if (weightsInPlace_ || importing_ || importStarted_ || blob.flow != Flow::weightsBody) {
    refuse("unexpected-message",
           std::string(flowName(blob.flow)) + " arrived, but no initial weights are expected");
  }
  importing_ = std::move(blob);
}

// ---- Choosing the next action ----

ReadyKinds Engine::readyKinds() const {
  ReadyKinds kinds;
  if (!batch_ || batch_->done) return kinds;
  const auto set = [&](ActionKind kind, bool ready) {
    kinds.ready[indexOf(kind)] = ready && started(kind) < batch_->at.microBatches;
  };
  const auto inputWaits = [&](ActionKind kind) {
    return isWaiting(*flowsOf(kind).input, started(kind));
  };
  if (options_.role == Role::client) {
    // A micro-batch counts as in flight until its last action here begins. Until then the client
    // holds what autograd saved of the head, or a reply that is waiting.
    const ActionKind last = isTrain() ? ActionKind::headBackward : ActionKind::tailStep;
    set(ActionKind::headForward,
        started(ActionKind::headForward) - started(last) < options_.inFlight);
    set(ActionKind::tailStep, inputWaits(ActionKind::tailStep));
    set(ActionKind::headBackward, inputWaits(ActionKind::headBackward));
  } else {
    set(ActionKind::bodyForward, inputWaits(ActionKind::bodyForward));
    set(ActionKind::bodyBackward, inputWaits(ActionKind::bodyBackward));
  }
  return kinds;
}

std::optional<ActionKind> Engine::readyUnscheduled() const {
  if (updatePending_) {
    return updateStarted_ ? std::nullopt : std::optional(ActionKind::update);
  }
  if (importing_) return ActionKind::importBlob;
  if (fetching_ && options_.role == Role::server && !exportStarted_) return ActionKind::exportBlob;
  if (!batch_ || batch_->done || !isTrain()) return std::nullopt;
  if (options_.role == Role::server) {
    if (!batch_->reportStarted && allCompleted(ActionKind::bodyBackward)) return ActionKind::report;
    return std::nullopt;
  }
  const bool gradientsHere = !options_.fetchGradients || blob_;
  if (!batch_->decideStarted && bodyDone_ && gradientsHere &&
      allCompleted(ActionKind::headBackward)) {
    return ActionKind::decide;
  }
  return std::nullopt;
}

std::optional<Work> Engine::next() {
  while (!deferred_.empty() && !updatePending_) {
    Message message = std::move(deferred_.front());
    deferred_.pop_front();
    dispatch(std::move(message));
  }
  Work work;
  if (const auto kind = readyUnscheduled()) {
    work = makeUnscheduled(*kind);
  } else {
    const ReadyKinds ready = readyKinds();
    if (!ready.any()) return std::nullopt;
    const StageState state{options_.role, batch_->at.phase, batch_->at.microBatches,
                           std::min(options_.inFlight, batch_->at.microBatches), batch_->started};
    const auto picked = options_.schedule->pick(ready, state);
    if (!picked) return std::nullopt;
    assert(ready[*picked]);
    work = makeScheduled(*picked);
  }
  work.token = nextToken_++;
  Work& kept = running_[work.token];
  kept.token = work.token;
  kept.kind = work.kind;
  kept.at = work.at;
  kept.flow = work.flow;
  return work;
}

Work Engine::makeScheduled(ActionKind kind) {
  Work work;
  work.kind = kind;
  work.at = batch_->at;
  work.at.i = batch_->started[indexOf(kind)]++;
  if (const auto input = flowsOf(kind).input) {
    auto node = batch_->waiting.extract({work.at.phase, work.at.step, work.at.i, *input});
    work.input = std::move(node.mapped());
  }
  return work;
}

Work Engine::makeUnscheduled(ActionKind kind) {
  Work work;
  work.kind = kind;
  if (batch_) work.at = batch_->at;
  switch (kind) {
    case ActionKind::report:
      batch_->reportStarted = true;
      break;
    case ActionKind::decide:
      batch_->decideStarted = true;
      work.bodyDone = bodyDone_;
      break;
    case ActionKind::update:
      updateStarted_ = true;
      work.decision = decision_;
      break;
    case ActionKind::importBlob:
      importStarted_ = true;
      work.blob = std::exchange(importing_, std::nullopt);
      break;
    default:  // exportBlob
      exportStarted_ = true;
      work.flow = *fetching_;
      break;
  }
  return work;
}

// ---- Completed actions ----

void Engine::complete(std::uint64_t token, Result result, double seconds) {
  auto node = running_.extract(token);
  if (node.empty()) throw std::logic_error("an action completed twice, or was never handed out");
  Work work = std::move(node.mapped());
  if (batch_) batch_->seconds[indexOf(work.kind)] += seconds;
  switch (work.kind) {
    case ActionKind::report:
      return finishReport(std::get<GradientReport>(result));
    case ActionKind::decide:
      decision_ = std::get<StepDecision>(result);
      assert(decision_->step == applied_ + 1);
      updatePending_ = true;
      updateStarted_ = false;
      link_.send(*decision_);
      return;
    case ActionKind::update:
      return finishUpdate(seconds);
    case ActionKind::exportBlob: {
      auto bytes = std::get<SharedBytes>(std::move(result));
      fetching_.reset();
      link_.send(Blob{work.flow, {bytes->data(), bytes->size()}, bytes});
      return;
    }
    case ActionKind::importBlob:
      weightsInPlace_ = true;
      link_.send(StepOk{0});
      return;
    default:
      return finishScheduled(std::move(work), std::move(result));
  }
}

void Engine::finishScheduled(Work&& work, Result&& result) {
  ++batch_->completed[indexOf(work.kind)];
  const auto output = flowsOf(work.kind).output;
  if (output && (isTrain() || work.kind != ActionKind::tailStep)) {
    link_.send(TensorMessage{*output, work.at, applied_, std::get<Payload>(std::move(result))});
  }
  if (!isTrain()) {
    const ActionKind last =
        options_.role == Role::client ? ActionKind::tailStep : ActionKind::bodyForward;
    batch_->done = allCompleted(last);
  }
}

void Engine::finishReport(const GradientReport& report) {
  batch_->reported = true;
  BodyDone done;
  done.step = batch_->at.step;
  done.report = report;
  done.forwardSeconds = batch_->seconds[indexOf(ActionKind::bodyForward)];
  done.backwardSeconds = batch_->seconds[indexOf(ActionKind::bodyBackward)];
  done.updateSeconds = updateSeconds_;
  link_.send(done);
}

void Engine::finishUpdate(double seconds) {
  applied_ = decision_->step;
  updatePending_ = false;
  updateSeconds_ = seconds;
  batch_->done = true;
  link_.commit();
  if (options_.role == Role::client) return;
  link_.send(StepOk{applied_});
}

}  // namespace cleave
