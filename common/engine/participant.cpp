#include "common/engine/participant.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "common/engine/schedule.h"

namespace cleave {

Participant::Participant(const EngineOptions& options, const Place& place,
                         std::vector<std::shared_ptr<EngineLink>> links)
    : Engine(options, bodyRows(place, options.bodies, options.schedule->splitsBackward),
             options.byMember ? links.size() : 1),
      place_(place),
      links_(std::move(links)),
      parts_(links_.size()),
      weights_(options.initialWeights || options.resumes ? Weights::expected : Weights::inPlace) {}

// ---- Incoming messages ----

void Participant::receive(std::size_t peer, Message message) {
  if (options_.hasEdgeBefore || links_.size() > 1) {
    auto* tensor = std::get_if<TensorMessage>(&message);
    if (tensor != nullptr && isActivation(tensor->flow)) {
      return keepUntilItsBatch(peer, std::move(*tensor));
    }
  }
  if (!isUpdatePending() && deferred_.empty()) return dispatch(peer, std::move(message));
  const std::size_t max = links_.size() * maxWaiting(options_.inFlight);
  if (deferred_.size() >= max) {
    refuse("too-many-in-flight",
           "more than " + std::to_string(max) + " messages arrived before an update");
  }
  deferred_.push_back({peer, std::move(message)});
}

void Participant::dispatch(std::size_t peer, Message&& message) {
  if (auto* blob = std::get_if<Blob>(&message)) {
    return blob->flow == kPartsClient ? receivePart(peer, std::move(*blob))
                                      : receiveWeights(std::move(*blob));
  }
  if (const auto* resume = std::get_if<Resume>(&message)) return receiveResume(peer, *resume);
  if (!weightsInPlace()) {
    refuse("unexpected-message", "another message arrived before the weights were in place");
  }
  if (auto* tensor = std::get_if<TensorMessage>(&message)) {
    receiveTensor(peer, std::move(*tensor));
  } else if (const auto* decision = std::get_if<StepDecision>(&message); decision && peer == 0) {
    receiveDecision(*decision);
  } else if (const auto* fetch = std::get_if<Fetch>(&message)) {
    receiveFetch(peer, *fetch);
  } else {
    refuse("unexpected-message", "received a message that this client may not send");
  }
}

// The other server is at most one batch ahead, because the client begins a batch only after this
// body has reported on the previous step or has computed the previous evaluation batch.
// In a cohort, the steps between may have no micro-batch of this member.
void Participant::keepUntilItsBatch(std::size_t from, TensorMessage&& message) {
  const Key key = message.key();
  const bool train = key.phase == Phase::train;
  latestStep_ = std::max(latestStep_, applied_);
  const std::uint64_t last = train ? latestStep_ : evaluated_;
  const bool isTooFar = train && key.step > reported_ + 1 + options_.staleness;
  if ((key.step > last + 1 && links_.size() == 1) || isTooFar) {
    refuse("step-gap", toString(key) + " arrived, but the last known step is " +
                           stepText(key.phase, isTooFar ? reported_ : last));
  }
  if (links_.size() > 1 && !options_.hasEdges) checkOfMember(from, message);
  if (early_.size() >= links_.size() * maxWaiting(options_.inFlight)) {
    refuse("too-many-in-flight", toString(key) + " arrived long before its step may begin");
  }
  if (train) latestStep_ = std::max(latestStep_, key.step);
  early_.emplace_back(from, std::move(message));
}

// Throws ProtocolError unless the member may send the activation now, whether or not its batch has
// begun: so no member uses the memory of the others.
void Participant::checkOfMember(std::size_t from, const TensorMessage& message) const {
  const Key key = message.key();
  if (message.at.batch.memberOf(key.i) != from) {
    refuse("bad-key", toString(key) + " belongs to another client");
  }
  if (key.phase == Phase::train) return;
  // An evaluation follows the last step that is reported, and ends with a sum over the members.
  if (message.weightVersion != reported_) {
    refuse("bad-key", toString(key) + " is for weights after " +
                          std::to_string(message.weightVersion) + " steps, but " +
                          std::to_string(reported_) + " are reported");
  }
  const auto isOther = [&](const auto& each) {
    return each.first == from && each.second.at.phase == Phase::eval &&
           each.second.at.step != key.step;
  };
  if (std::ranges::any_of(early_, isOther)) {
    refuse("too-many-in-flight", toString(key) + " arrived before an earlier batch could begin");
  }
}

// Whether receiveTensor() can handle the message now.
bool Participant::mayTake(const TensorMessage& message) const {
  const Key key = message.key();
  if (isUpdatePending() || !weightsInPlace()) return false;
  if (find(key)) return true;
  if (key.phase == Phase::train) return key.step <= applied_ || mayStart(message.at);
  return batchDone() && message.weightVersion <= applied_;
}

void Participant::receiveTensor(std::size_t from, TensorMessage&& message) {
  const Key key = message.key();
  if (!isInput(key.flow)) refuse("bad-key", toString(key) + " cannot come from a client");
  const bool train = key.phase == Phase::train;
  const std::uint64_t finished = train ? applied_ : evaluated_;
  auto batch = find(key);
  if (key.step <= finished && (train || !batch)) {
    refuse("bad-key", toString(key) + " belongs to a finished step");
  }
  if (!batch) {
    // The steps in progress follow the finished ones without a gap.
    const bool areTrained = train && !open().empty() && open().back().at.phase == Phase::train;
    const std::uint64_t last = areTrained ? open().back().at.step : finished;
    const std::uint64_t max = finished + 1 + (train ? options_.staleness : 0);
    if (key.step != last + 1 || key.step > max) {
      refuse("step-gap",
             toString(key) + " arrived, but the last known step is " + stepText(key.phase, last));
    }
    if (isGradient(key.flow)) {
      refuse("bad-key", toString(key) + " arrived before any activation of its step");
    }
    startBatchOf(message);
    batch = find(key);
  }
  checkAgainstBatch(message, open()[*batch].at.batch, open()[*batch].share);
  // Another server passes on the tensors of all members.
  if (!options_.hasEdges && message.at.batch.memberOf(key.i) != from) {
    refuse("bad-key", toString(key) + " belongs to another client");
  }
  if (const std::uint64_t version = versionOf(message.at); message.weightVersion != version) {
    refuse("bad-key", toString(key) + " is for weights after " +
                          std::to_string(message.weightVersion) +
                          " steps, but must be for those after " + std::to_string(version));
  }
  if (isGradient(key.flow) && (!train || !isComplete(ActionKind::bodyForward, *batch, key.i))) {
    refuse("bad-key", toString(key) + " arrived before its activation was sent");
  }
  store(std::move(message), *batch);
}

void Participant::startBatchOf(const TensorMessage& message) {
  const MicroBatch& at = message.at;
  if (!mayStart(at)) {
    const MicroBatch& other = open().back().at;
    refuse("unexpected-message", stepText(at.phase, at.step) + " begins while " +
                                     stepText(other.phase, other.step) + " is not finished");
  }
  const Division planned = options_.planned ? options_.planned(at)
                                            : Division::of(at.batch.samples, options_.microBatches);
  if (at.batch.samples == 0 || at.batch != planned) {
    refuse("bad-key", toString(message.key()) + " claims " + std::to_string(at.batch.count) +
                          " micro-batches of " + std::to_string(at.batch.samples) +
                          " samples; the agreed number is " +
                          std::to_string(options_.microBatches) + " per batch");
  }
  if (batchDone()) state_ = State::running;
  startBatch(at, options_.replica.shareOf(at.batch.all()));
}

void Participant::endOldest() {
  endBatch();
  state_ = batchDone() ? State::idle : State::running;
}

void Participant::receiveDecision(const StepDecision& decision) {
  if (decision.step != applied_ + 1) {
    refuse("step-gap", "Step " + std::to_string(decision.step) + " arrived, but " +
                           std::to_string(applied_) + " steps are applied");
  }
  if (reported_ < decision.step) {
    refuse("unexpected-message",
           "Step " + std::to_string(decision.step) + " arrived before its BodyDone was sent");
  }
  assert(state_ == State::running);
  decision_ = decision;
  state_ = State::decided;
  if (!options_.sumsMembers) return;
  for (std::size_t member = 1; member < links_.size(); ++member) links_[member]->send(decision);
}

void Participant::receivePart(std::size_t from, Blob&& part) {
  if (!options_.sumsMembers || parts_[from]) {
    refuse("unexpected-message", flowName(part.flow) + " arrived twice, or at another server");
  }
  parts_[from] = std::move(part);
}

void Participant::receiveFetch(std::size_t from, const Fetch& fetch) {
  if (std::ranges::any_of(fetches_, [&](const auto& each) { return each.first == from; })) {
    refuse("unexpected-message", "a second Fetch arrived before the first was answered");
  }
  const bool ofWeights = fetch.flow == kWeightsBody;
  const bool isReported = reported_ > applied_;
  // A tensor from another server, or of another member, may have begun the next batch before. The
  // weights are the same: its update needs this sender.
  const bool mayOvertake = options_.hasEdgeBefore || links_.size() > 1;
  const bool isBetween = state_ == State::idle || (mayOvertake && state_ == State::running);
  if (!isReported && !(ofWeights && isBetween)) {
    refuse("unexpected-message", "Fetch of " + flowName(fetch.flow) +
                                     (ofWeights ? " arrived in the middle of a batch"
                                                : " did not arrive between BodyDone and Step"));
  }
  fetches_.emplace_back(from, fetch);
}

// Whether the client waits for the answer before it decides on the oldest step. With several links,
// a Fetch of weights may also be one between batches, see receiveFetch().
bool Participant::isOfStep(const Fetch& fetch) const {
  const bool isAlone = links_.size() == 1 && !options_.hasEdgeBefore;
  return reported_ > applied_ && (fetch.flow == kGradsBody || isAlone);
}

void Participant::receiveWeights(Blob&& blob) {
  if (weights_ != Weights::expected || options_.resumes || blob.flow != kWeightsBody) {
    refuse("unexpected-message",
           flowName(blob.flow) + " arrived, but no initial weights are expected");
  }
  source_ = std::move(blob);
  weights_ = Weights::arrived;
}

// Waits for the Resumes of all members: each must have asked before it is told that the body is
// there.
void Participant::receiveResume(std::size_t from, const Resume& resume) {
  if (weights_ != Weights::expected || !options_.resumes || !resumed_.insert(from).second) {
    refuse("unexpected-message",
           "Resume arrived twice, or the run does not continue from a checkpoint");
  }
  if (const auto* other = std::get_if<Resume>(&source_); other && other->step != resume.step) {
    refuse("members-differ", "one member continues from step " + std::to_string(resume.step) +
                                 ", another one from step " + std::to_string(other->step));
  }
  source_ = resume;
  if (resumed_.size() == links_.size()) weights_ = Weights::arrived;
}

// ---- Actions ----

// The next answer to a Fetch; nullopt while one is being made.
std::optional<Work> Participant::exportWork() {
  if (std::exchange(isExporting_, true)) return std::nullopt;
  return workOf(ActionKind::exportBlob, fetches_.front().second.flow);
}

std::optional<Work> Participant::nextWork() {
  while (!deferred_.empty() && !isUpdatePending()) {
    Deferred first = std::move(deferred_.front());
    deferred_.pop_front();
    dispatch(first.peer, std::move(first.message));
  }
  for (;;) {
    const auto next = std::find_if(early_.begin(), early_.end(),
                                   [this](const auto& each) { return mayTake(each.second); });
    if (next == early_.end()) break;
    auto [peer, message] = std::move(*next);
    early_.erase(next);
    receiveTensor(peer, std::move(message));
  }
  // A Fetch between BodyDone and Step asks for what the update changes.
  if (!fetches_.empty() && isOfStep(fetches_.front().second)) return exportWork();
  if (state_ == State::decided) {
    assert(decision_.step == applied_ + 1 && reported_ >= decision_.step);
    state_ = State::updating;
    return workOf(ActionKind::update, decision_);
  }
  if (state_ == State::updated) {
    state_ = State::copying;
    return workOf(ActionKind::snapshot, decision_);
  }
  if (isUpdatePending()) return std::nullopt;
  if (weights_ == Weights::arrived) {
    weights_ = Weights::importing;
    const bool resumes = std::holds_alternative<Resume>(source_);
    return workOf(resumes ? ActionKind::restore : ActionKind::importBlob, std::move(source_));
  }
  if (!fetches_.empty()) {
    if (auto work = exportWork()) return work;
  }
  if (isReportNext()) return reportWork();
  if (isSumNext()) return sumWork();
  return nextOfStage();
}

bool Participant::isSumNext() const {
  return options_.sumsMembers && std::all_of(parts_.begin(), parts_.end(),
                                             [](const auto& part) { return part.has_value(); });
}

Work Participant::sumWork() {
  assert(isSumNext());
  std::vector<Blob> parts;
  for (auto& part : parts_) parts.push_back(*std::exchange(part, std::nullopt));
  return workOf(ActionKind::sum, std::move(parts));
}

Work Participant::reportWork() {
  assert(isReportNext());
  const bool reduces = options_.reduces && reporting_ == Reporting::none;
  reporting_ = reduces ? Reporting::reducing : Reporting::reporting;
  Work work = workOf(reduces ? ActionKind::reduce : ActionKind::report);
  work.at = open()[reported_ - applied_].at;
  return work;
}

bool Participant::isReportNext() const {
  const std::size_t next = reported_ - applied_;  // in open()
  const bool isFree = reporting_ == Reporting::none || reporting_ == Reporting::reduced;
  return isFree && !isUpdatePending() && fetches_.empty() && next < open().size() &&
         open()[next].at.phase == Phase::train && areComputed(next + 1);
}

void Participant::restore(const EngineState& state) {
  Engine::restore(state);
  reported_ = state.applied;
}

void Participant::finish(Work&& work, Result&& result, double seconds) {
  switch (work.kind) {
    case ActionKind::reduce:
      assert(reporting_ == Reporting::reducing);
      reporting_ = Reporting::reduced;
      return;
    case ActionKind::report:
      assert(reporting_ == Reporting::reporting && work.at.step == reported_ + 1);
      reporting_ = Reporting::none;
      reported_ = work.at.step;
      return sendReport(open()[reported_ - applied_ - 1], std::get<GradientReport>(result));
    case ActionKind::update: {
      assert(state_ == State::updating);
      applied_ = decision_.step;
      updateSeconds_ = seconds;
      if (decision_.checkpoint) {
        state_ = State::updated;
      } else {
        endOldest();
      }
      for (const auto& link : links_) link->commit(applied_);
      const auto* digest = std::get_if<std::uint64_t>(&result);
      const StepOk ok{applied_, digest == nullptr ? 0 : *digest};
      for (const auto& link : links_) link->send(ok);
      return;
    }
    case ActionKind::exportBlob: {
      auto bytes = std::get<SharedBytes>(std::move(result));
      assert(isExporting_);
      isExporting_ = false;
      const std::size_t fetcher = fetches_.front().first;
      const bool isAwaited = isOfStep(fetches_.front().second);
      fetches_.pop_front();
      links_[fetcher]->send(
          Blob{std::get<Flow>(work.input), {bytes->data(), bytes->size()}, bytes, isAwaited});
      return;
    }
    case ActionKind::sum: {
      const auto bytes = std::get<SharedBytes>(std::move(result));
      for (const auto& link : links_) {
        link->send(Blob{kSumsClient, {bytes->data(), bytes->size()}, bytes, true});
      }
      return;
    }
    case ActionKind::snapshot:
      assert(state_ == State::copying);
      return endOldest();
    case ActionKind::restore:
      restore(std::get<EngineState>(result));
      [[fallthrough]];
    case ActionKind::importBlob:
      assert(weights_ == Weights::importing);
      weights_ = Weights::inPlace;
      for (const auto& link : links_) link->send(StepOk{applied_});
      return;
    default:
      for (TensorMessage& message : finishOfStage(work, std::move(result))) {
        EngineLink& link = *links_[message.at.batch.memberOf(message.at.i)];
        link.send(std::move(message));
      }
      if (work.at.phase == Phase::eval && areComputed(1)) endOldest();
  }
}

void Participant::sendReport(const BatchSeconds& batch, const GradientReport& report) {
  BodyDone done;
  done.step = batch.at.step;
  done.report = report;
  done.forwardSeconds = batch.seconds[indexOf(ActionKind::bodyForward)];
  done.backwardSeconds = batch.seconds[indexOf(ActionKind::bodyBackward)];
  done.weightsSeconds = batch.seconds[indexOf(ActionKind::bodyWeights)];
  done.reduceSeconds = batch.seconds[indexOf(ActionKind::reduce)];
  done.updateSeconds = updateSeconds_;
  for (const auto& link : links_) link->send(done);
}

}  // namespace cleave
