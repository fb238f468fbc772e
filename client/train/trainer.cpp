#include "client/train/trainer.h"

#include <spdlog/fmt/fmt.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "common/codec/checkpoint_error.h"
#include "common/cohort/roster_json.h"
#include "common/core/clock.h"
#include "common/core/durable.h"
#include "common/core/log.h"
#include "common/core/metric_titles.h"

namespace cleave {
namespace {

// The names of best values in a checkpoint's notes. Each is stored there as [value, epoch].
constexpr std::pair<const char*, std::optional<BestValue> TrainResult::*> kBestNotes[] = {
    {"best", &TrainResult::best}, {"kept", &TrainResult::kept}};

constexpr double kCheckpointSeconds = 60;  // to write a checkpoint, on a slow disk

// Whether the tensors of CodecLevel::eight differ from those of CodecLevel::own.
bool hasEightBits(std::span<const RunPlan> bodies) {
  return std::any_of(bodies.begin(), bodies.end(), [](const RunPlan& body) {
    return std::any_of(body.codecs.begin(), body.codecs.end(), [](const auto& each) {
      return each.second.hasLevels() && each.second.eight != each.second.own;
    });
  });
}

}  // namespace

Trainer::Trainer(TrainRun& run, Progress& progress)
    : run_(run),
      settings_(run.settings()),
      data_(run.data()),
      session_(run.session()),
      progress_(progress),
      totalSteps_(run.prepared().totalSteps()),
      decider_(settings_, run.prepared().trainSamples()),
      quality_(run.prepared().plan.spec.codecLevels ? settings_.quality : QualitySettings{},
               hasEightBits(run.prepared().plansOfBodies())),
      meter_(placesOf(run.prepared().plansOfBodies()), settings_.bodyReplicas) {
  if (!settings_.cohort.isRelay()) return;
  const Roster& roster = run.prepared().plan.joint->roster();
  decider_.beginTurn(roster, roster.attendance.size() - 1);
}

void Trainer::start(const TrainRun::Options& options) {
  run_.start([this](const std::vector<BodyDone>& bodies) { return decide(bodies); }, options);
}

StepDecision Trainer::decide(const std::vector<BodyDone>& bodies) {
  const std::uint64_t step = bodies.front().step;
  checkGradients(step);
  const GradientReport head = run_.stage().headReport();
  result_.clientMemory = head.peakMemory;
  for (const BodyDone& body : bodies)
    result_.bodyMemory = std::max(result_.bodyMemory, body.report.peakMemory);
  StepDecision decision = decider_.decide(step, head, reportsOf(bodies), run_.stage().tailReport());
  // The next step may be decided before this one is recorded.
  norms_.push_back(decider_.norm());
  if (Checkpointer* const checkpointer = run_.checkpointer()) {
    decision.checkpoint = makesCheckpoint(step, *checkpointer);
    if (decision.checkpoint) {
      checkpointer->begin(step);
      checkpointStep_ = step;
      decision.keep = checkpointer->keep();
    }
  }
  return decision;
}

void Trainer::checkGradients(std::uint64_t step) {
  GradientCheck* const check = run_.check();
  if (check == nullptr || !check->isDue(step)) return;
  const Blob weights = session_.blobsOfStep().front();
  check->check(open_.front().at, weights.bytes);
}

TrainResult Trainer::run() {
  StepRow handshake;
  handshake.phase = "handshake";
  run_.files().step(handshake, session_.totals());
  if (run_.resumes()) {
    restore(run_.resume());
  } else {
    run_.loadWeights();
  }
  result_.resumed = run_.resumeCounts();
  shown_.epochs = totalSteps_ == 0 ? 0 : run_.prepared().epochOf(totalSteps_);

  // If a checkpoint was made after an epoch's last step but before its evaluation, that epoch is
  // also unfinished; but not at the beginning of a turn, because it is another member's.
  bool isMidway = result_.steps > 0 && !run_.beginsTurn();
  std::uint64_t epoch = isMidway ? run_.prepared().epochOf(result_.steps)
                                 : run_.prepared().epochOf(result_.steps + 1);
  for (; stepsLeft() || isMidway; ++epoch) {
    if (!std::exchange(isMidway, false)) beginEpoch();
    trainEpoch(epoch);
    refuseUncounted();
    afterEpoch_();
    evalMetrics_.reset();
    const SteadyTime evalStart = now();
    if (evaluationIsDue(epoch)) evaluate(epoch);

    EpochRow row;
    row.epoch = epoch;
    row.steps = epochSteps_;
    row.samples = epochMetrics_.samples;
    row.trainSeconds = epochSeconds_;
    row.trainMetrics = metricValues(settings_.scores, epochMetrics_);
    if (evalMetrics_) {
      row.evalSeconds = secondsSince(evalStart);
      lastEvalSeconds_ = row.evalSeconds;
      row.evalMetrics = result_.lastEval;
      row.ownEvalMetrics = result_.lastOwnEval;
    }
    run_.files().epoch(row, session_.totals());
    progress_.epoch(row, shown_.epochs);
    if (evalMetrics_ && !settings_.bestMetric.empty()) keepIfBest(epoch);
    if (evalMetrics_ && !settings_.stop.metric.empty() && shouldStop(epoch)) {
      result_.stoppedAfter = epoch;
      processLog()->info("train.stop: {} has not improved in {} evaluations, so the run ends",
                         settings_.stop.metric, settings_.stop.patience);
      break;
    }
  }
  if (Checkpointer* const checkpointer = run_.checkpointer()) {
    // A turn cannot end without it.
    constexpr double kOfTurnSeconds = 3600;
    settle(*checkpointer, settings_.cohort.isRelay() ? kOfTurnSeconds : kCheckpointSeconds);
  }
  if (settings_.staleness == 0 && !run_.prepared().plan.member) result_.costs = meter_.mean();
  result_.stepsSkipped = decider_.skipped();
  result_.quality = quality_.summary();
  if (const auto& joint = run_.prepared().plan.joint) result_.cohort = toJson(joint->roster());
  return result_;
}

// Throws UsageError if no target of the epoch counts: such a run trains nothing, but would seem to
// succeed.
void Trainer::refuseUncounted() const {
  const auto weight = epochMetrics_.sums.find(kLossWeight);
  if (weight == epochMetrics_.sums.end() || weight->second > 0) return;
  throw UsageError("bad-label",
                   "the loss ignores all targets of this epoch, so nothing was trained",
                   "correct the data, data.target, train.loss.ignore_index or class_weights");
}

void Trainer::keepIfBest(std::uint64_t epoch) {
  if (updateBest(settings_.bestMetric, settings_.bestIsGreatest, epoch, result_.kept)) afterBest_();
}

bool Trainer::shouldStop(std::uint64_t epoch) {
  const EarlyStop& stop = settings_.stop;
  const bool isBetter = updateBest(stop.metric, stop.isGreatest, epoch, stopBest_, stop.minChange);
  notBetter_ = isBetter ? 0 : notBetter_ + 1;
  return notBetter_ >= stop.patience && stepsLeft();
}

bool Trainer::evaluationIsDue(std::uint64_t epoch) const {
  const bool isLastEpoch = lastStepOf(epoch) >= totalSteps_;
  return settings_.evalEvery > 0 && (epoch % settings_.evalEvery == 0 || isLastEpoch);
}

std::unique_ptr<Loader> Trainer::trainingLoader(std::uint64_t epoch,
                                                std::uint64_t firstBatch) const {
  Loader::Options options = trainingOptions(run_.prepared(), epoch);
  options.firstBatch = firstBatch;
  options.ahead += settings_.staleness;
  return std::make_unique<Loader>(data_.train, session_.pool(), options);
}

void Trainer::beginEpoch() {
  epochMetrics_ = {};
  epochSteps_ = 0;
  epochSeconds_ = 0;
}

void Trainer::trainEpoch(std::uint64_t epoch) {
  std::unique_ptr<Loader> loader = std::move(nextLoader_);
  if (!loader) loader = trainingLoader(epoch, epochSteps_);
  shown_.epoch = epoch;
  for (;;) {
    const SteadyTime start = now();
    while (mayBeginStep() && beginStep(epoch, *loader)) {
    }
    // All steps of an epoch end before its evaluation.
    if (open_.empty()) break;
    run_.finishBatch();
    const double seconds = secondsSince(start);
    epochSeconds_ += seconds;
    result_.trainSeconds += seconds;
    finishStep(epoch);
  }
}

bool Trainer::mayBeginStep() const {
  const std::uint64_t begun = result_.steps + open_.size();
  if (begun >= totalSteps_) return false;
  // Between some steps, none is in progress.
  if (!open_.empty() && (begun == pauseAfter_ || quality_.isDue(begun))) return false;
  return open_.empty() || (run_.mayBeginStep(begun + 1) && !isAskedToLeave());
}

// Returns false if the epoch has no more batches.
bool Trainer::beginStep(std::uint64_t epoch, Loader& loader) {
  auto batch = loader.next();
  if (!batch) return false;
  // The first batch of the next epoch is prepared during the last step and the evaluation of this
  // epoch.
  const std::uint64_t step = result_.steps + open_.size() + 1;
  if (step == lastStepOf(epoch) && step < totalSteps_) nextLoader_ = trainingLoader(epoch + 1);
  if (open_.empty()) leaveIfAsked(Phase::train);
  if (open_.empty() && quality_.isDue(result_.steps)) checkQuality(*batch, epoch);
  session_.setCodecLevel(Phase::train, step, quality_.level());
  run_.stage().setLossScale(decider_.lossScale());
  OpenStep& open = open_.emplace_back(OpenStep{std::move(*batch), {}, now()});
  open.at = run_.beginBatch(Phase::train, step, open.batch);
  return true;
}

// Call when the oldest step in progress has ended.
void Trainer::finishStep(std::uint64_t epoch) {
  const OpenStep step = std::move(open_.front());
  open_.pop_front();
  const SteadyTime begun = std::max(step.begun, lastEnd_);  // steps may overlap
  lastEnd_ = now();
  show(step.at, secondsBetween(begun, lastEnd_));
  ++result_.steps;
  hasTrained_ = true;
  ++epochSteps_;
  result_.samples += step.at.batch.samples;
  epochMetrics_.add(run_.stage().metrics(step.at.step));
  if (quality_.isDue(result_.steps)) quality_.measuredSnr(session_.takeLowestSnr());
  std::shared_ptr<PartSnapshot> state;
  double copySeconds = 0;
  if (checkpointStep_ == result_.steps) {
    const SteadyTime copyStart = now();
    state = run_.copyState(notes());
    copySeconds = secondsSince(copyStart);
  }
  recordStep(step.at, epoch, copySeconds);
  if (state) run_.saveCheckpoint(std::move(state));
  shown_.step = result_.steps;
  shown_.samples = result_.samples;
  progress_.batch(shown_, session_.totals());
  afterStep_(result_.steps);
}

// ---- Checkpoints ----

// Without its servers, no checkpoint in progress ends.
void Trainer::settle(Checkpointer& checkpointer, double seconds) const {
  checkpointer.settle(seconds, [this] { return session_.hasEnded() || session_.isTimeUp(); });
}

// In a cohort, the first member decides, so that all save the same step.
bool Trainer::makesCheckpoint(std::uint64_t step, Checkpointer& checkpointer) const {
  const bool isCopied = checkpointStep_ <= result_.steps;  // the last checkpoint's state
  const auto settleLast = [&] {                            // there is one at a time
    if (isCopied) settle(checkpointer, kCheckpointSeconds);
  };
  if (run_.prepared().plan.member.value_or(0) > 0) {
    checkpointer.checkFailure();
    if (!session_.engine().isCheckpointOrdered()) return false;
    settleLast();
    return true;
  }
  if (mayBeLast(step)) {
    settleLast();
    checkpointer.request();
  }
  if (isAskedToLeave() || precedesLongEvaluation(step)) checkpointer.request();
  // With steps that overlap, a checkpoint shortly before the last step would leave no time for that
  // of the last step.
  const bool leavesTime = !overlapsLast(step) || mayBeLast(step);
  return (leavesTime || isAskedToLeave()) && checkpointer.isDue(step);
}

// Whether the run must end: after Ctrl-C, if the server is about to shut down, or if another member
// of the cohort leaves or joins.
bool Trainer::isAskedToLeave() const { return session_.isInterrupted() || session_.isDraining(); }

// Whether an evaluation that may take long follows this step. Such a step makes a checkpoint,
// because an evaluation cannot make one: a run that must end during the evaluation can then
// continue from that step.
bool Trainer::precedesLongEvaluation(std::uint64_t step) const {
  constexpr double kLongSeconds = 2;
  const std::uint64_t epoch = run_.prepared().epochOf(step);
  const bool endsEpoch = step == lastStepOf(epoch) || step == totalSteps_;
  return endsEpoch && evaluationIsDue(epoch) &&
         lastEvalSeconds_.value_or(kLongSeconds) >= kLongSeconds;
}

// Whether the run may end with this step, because it is the last one, or because of train.stop.
// Such a step makes a checkpoint, from which the run can be continued for more epochs.
bool Trainer::mayBeLast(std::uint64_t step) const {
  if (step == totalSteps_) return true;
  const std::uint64_t epoch = run_.prepared().epochOf(step);
  return !settings_.stop.metric.empty() && step == lastStepOf(epoch) && evaluationIsDue(epoch) &&
         notBetter_ + 1 >= settings_.stop.patience;
}

// Whether one of the next steps, which begin before this one has ended, may be the last one.
bool Trainer::overlapsLast(std::uint64_t step) const {
  for (std::uint64_t later = step + 1; later <= step + settings_.staleness; ++later) {
    if (mayBeLast(later)) return true;
  }
  return false;
}

// Called before each batch. If the run must end and its last step has a checkpoint, ends the run.
// If that step has no checkpoint, allows one more training step, which makes a checkpoint; in a
// cohort more, until one is complete: of a member that does not decide, and if nothing but another
// member asks for it.
void Trainer::leaveIfAsked(Phase next) {
  constexpr double kWriteSeconds = 5;
  Checkpointer* const checkpointer = run_.checkpointer();
  if (checkpointer == nullptr || !isAskedToLeave()) return;
  const bool hasTime = !session_.isInterrupted() && session_.isDrainedByMember();
  settle(*checkpointer, hasTime ? kCheckpointSeconds : kWriteSeconds);
  if (checkpointer->lastCommit() != result_.steps) {
    if (next == Phase::eval) return;
    const bool obeys = run_.prepared().plan.member.value_or(0) > 0;
    const bool mayGoOn = (obeys || hasTime) && !session_.isTimeUp();
    if (!std::exchange(isLastStep_, true) || mayGoOn) return;
  }
  if (session_.isInterrupted()) throw interruptedError();
  throw session_.drainedError();
}

RunSpent Trainer::spent() const {
  RunSpent spent = spentBefore_;
  spent.add(secondsSince(start_), session_.totals());
  return spent;
}

nlohmann::json Trainer::notes() const {
  const auto metricsJson = [](const BatchMetrics& metrics) {
    return nlohmann::json{{"samples", metrics.samples}, {"sums", metrics.sums}};
  };
  nlohmann::json notes = {{"steps", result_.steps},
                          {"samples", result_.samples},
                          {"train_seconds", result_.trainSeconds},
                          {"eval_batches", evalBatches_},
                          {"epoch_steps", epochSteps_},
                          {"epoch_seconds", epochSeconds_},
                          {"epoch_metrics", metricsJson(epochMetrics_)},
                          {"decider", decider_.save()},
                          {"quality", quality_.save()},
                          {"spent", toJson(spent())}};
  if (const auto& joint = run_.prepared().plan.joint) notes["cohort"] = toJson(joint->roster());
  for (const std::optional<double>& value : result_.lastEval) {
    notes["last_eval"].push_back(value ? nlohmann::json(*value) : nlohmann::json());
  }
  for (const auto& [name, field] : kBestNotes) {
    if (const auto& best = result_.*field) notes[name] = {best->value, best->epoch};
  }
  notes["stop"] = {{"not_better", notBetter_}};
  if (const auto& reached = result_.target) {
    notes["target"] = {settings_.target.metric, settings_.target.value, reached->epoch,
                       reached->steps,          reached->seconds,       reached->bytes};
  }
  if (stopBest_) {
    notes["stop"]["best"] = stopBest_->value;
    notes["stop"]["epoch"] = stopBest_->epoch;
  }
  return notes;
}

void Trainer::restore(const nlohmann::json& notes) {
  const auto metricsOf = [](const nlohmann::json& json) {
    return BatchMetrics{json.at("samples"), json.at("sums")};
  };
  try {
    result_.steps = notes.at("steps");
    result_.samples = notes.at("samples");
    result_.trainSeconds = notes.at("train_seconds");
    evalBatches_ = notes.at("eval_batches");
    epochSteps_ = notes.at("epoch_steps");
    epochSeconds_ = notes.at("epoch_seconds");
    epochMetrics_ = metricsOf(notes.at("epoch_metrics"));
    if (notes.contains("spent")) spentBefore_ = spentFromJson(notes.at("spent"));
    if (notes.contains("last_eval")) {
      for (const nlohmann::json& value : notes.at("last_eval")) {
        result_.lastEval.push_back(value.is_null() ? std::nullopt
                                                   : std::optional(value.get<double>()));
      }
    }
    for (const auto& [name, field] : kBestNotes) {
      if (!notes.contains(name)) continue;
      result_.*field = BestValue{notes.at(name).at(0), notes.at(name).at(1)};
    }
    if (notes.contains("target")) {
      const nlohmann::json& reached = notes.at("target");
      // When it would have reached another target is not known.
      if (reached.at(0).get<std::string>() == settings_.target.metric &&
          reached.at(1).get<double>() == settings_.target.value) {
        result_.target = {reached.at(2), reached.at(3), reached.at(4), reached.at(5)};
      }
    }
    if (notes.contains("stop")) {
      const nlohmann::json& stop = notes.at("stop");
      if (stop.contains("best")) stopBest_ = BestValue{stop.at("best"), stop.at("epoch")};
      notBetter_ = stop.at("not_better");
    }
    decider_.restore(notes.at("decider"));
    if (notes.contains("quality")) quality_.restore(notes.at("quality"));
  } catch (const nlohmann::json::exception& error) {
    throw badCheckpoint(std::string("its notes cannot be read: ") + error.what());
  }
  shown_.step = result_.steps;
  shown_.samples = result_.samples;
  progress_.resume(shown_.step, shown_.samples);
}

// ---- Batches ----

void Trainer::evaluate(std::uint64_t epoch) {
  Loader loader(data_.test, session_.pool(), evaluationOptions(run_.prepared()));
  BatchMetrics sum, own;
  while (const auto batch = loader.next()) {
    leaveIfAsked(Phase::eval);
    sum.add(evaluateBatch(*batch, quality_.level(), epoch));
    own.add(run_.stage().ownMetrics(evalBatches_));
    progress_.batch(shown_, session_.totals());
  }
  evalMetrics_ = sum;
  result_.lastEval = metricValues(settings_.scores, sum);
  if (settings_.cohort.atOnce() > 1) result_.lastOwnEval = metricValues(settings_.scores, own);
  const std::string main = settings_.mainMetric();
  updateBest(main, metricTitle(main).isBetterIfGreater, epoch, result_.best);
  if (!result_.target && reachesTarget()) {
    const RunSpent until = spent();
    result_.target = {epoch, result_.steps, until.seconds, until.totals.up() + until.totals.down()};
  }
}

bool Trainer::reachesTarget() const {
  const auto& [metric, needed] = settings_.target;
  if (metric.empty()) return false;
  const std::optional<double> value = lastValueOf(metric);
  return value && (metricTitle(metric).isBetterIfGreater ? *value >= needed : *value <= needed);
}

std::optional<double> Trainer::lastValueOf(const std::string& metric) const {
  const std::vector<std::string> names = settings_.scores.names();
  const auto found = std::find(names.begin(), names.end(), metric);
  return result_.lastEval.at(static_cast<std::size_t>(found - names.begin()));
}

bool Trainer::updateBest(const std::string& metric, bool isGreatest, std::uint64_t epoch,
                         std::optional<BestValue>& best, double minChange) const {
  const std::optional<double> value = lastValueOf(metric);
  if (!value) return false;
  if (best) {
    const double change = isGreatest ? *value - best->value : best->value - *value;
    if (!(change > minChange)) return false;
  }
  best = {*value, epoch};
  return true;
}

const BatchMetrics& Trainer::evaluateBatch(const Batch& batch, CodecLevel level,
                                           std::uint64_t epoch) {
  const SteadyTime start = now();
  session_.setCodecLevel(Phase::eval, ++evalBatches_, level);
  const MicroBatch at = run_.runBatch(Phase::eval, evalBatches_, batch);
  show(at, secondsSince(start));
  recordStep(at, epoch);
  return run_.stage().metrics(at.step);
}

// ---- Quality ----

// Compares the losses of this batch, which the next step trains on, without and with the codecs. A
// run that continues from a checkpoint of the last step makes the same check.
void Trainer::checkQuality(const Batch& batch, std::uint64_t epoch) {
  QualityCheck check;
  check.step = result_.steps;
  check.lossWithout = lossAt(CodecLevel::raw, batch, epoch);
  check.lossWith = lossAt(quality_.level(), batch, epoch);
  if (const auto reason = quality_.check(check)) afterFallback_(*reason);
}

std::optional<double> Trainer::lossAt(CodecLevel level, const Batch& batch, std::uint64_t epoch) {
  return metricValues(settings_.scores, evaluateBatch(batch, level, epoch)).front();
}

void Trainer::show(const MicroBatch& at, double seconds) {
  shown_.phase = at.phase;
  shown_.batchSamples = at.batch.samples;
  shown_.seconds = seconds;
  shown_.metrics = metricValues(settings_.scores, run_.stage().metrics(at.step));
}

// Records the batch that has just ended.
void Trainer::recordStep(const MicroBatch& at, std::uint64_t epoch, double copySeconds) {
  const Coordinator& engine = session_.engine();
  const LinkTotals totals = session_.totals();
  StepRow row;
  row.phase = phaseName(at.phase);
  row.step = at.step;
  row.epoch = epoch;
  row.at = at;
  row.seconds = shown_.seconds;
  row.between = session_.betweenSteps();
  row.metrics = shown_.metrics;
  row.actions = engine.ended().seconds;
  const bool isMember = run_.prepared().plan.member.has_value();
  if (at.phase == Phase::train) {
    row.learningRate = shown_.learningRate = decider_.learningRateOf(at.step);
    row.gradientNorm = shown_.gradientNorm = norms_.front();
    norms_.pop_front();
    row.actions = actionsOfAllSides(engine);
    row.clientMemory = result_.clientMemory;
    row.bodyMemory = result_.bodyMemory;
    row.costs =
        meter_.measure(at, engine.ended().seconds, engine.reports(), totals, session_.linkSpeeds());
    // The bound of a cohort's step would need the costs of all members.
    if (row.costs && (isMember || !row.costs->hasRates())) row.costs.reset();
    // The bound is for steps that do not overlap.
    if (row.costs && settings_.staleness == 0) {
      row.bound = stepBound(*row.costs, run_.prepared().plan.schedule->splitsBackward);
      // An estimate: it uses the link's recent rates and, on busy cores, seconds that include
      // waiting for a core. The step itself shows that its minimum is at most its duration.
      row.bound->seconds = std::min(row.bound->seconds, shown_.seconds);
      BoundedSteps& bounded = result_.bounded;
      ++bounded.steps;
      bounded.seconds += shown_.seconds;
      bounded.bounds += row.bound->seconds;
      bounded.heldBack[static_cast<std::size_t>(row.bound->bottleneck)] += shown_.seconds;
      if (at.batch.samples == std::min(settings_.batch, run_.prepared().trainSamples()))
        bounded.wholeBatches.push_back(static_cast<float>(shown_.seconds));
    }
  } else {
    meter_.pass(totals);
  }
  row.actions[indexOf(ActionKind::snapshot)] = copySeconds;
  run_.files().step(row, totals);
  if (const auto failure = run_.files().writeFailure()) {
    throw RunError("cannot-write",
                   failure->path + ": rows could not be written: " + std::strerror(failure->error),
                   "free disk space")
        .about(kDisk);
  }
}

}  // namespace cleave
