// Trains a model through a session: epochs, steps, evaluation, and the decision on each step.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "client/codecs/quality_watch.h"
#include "client/data/samples/loader.h"
#include "client/train/progress.h"
#include "client/train/run_spent.h"
#include "client/train/step_decider.h"
#include "client/train/train_run.h"
#include "common/predict/step_meter.h"

namespace cleave {

// Sums over the training steps for which a lower bound of the duration is known.
struct BoundedSteps {
  std::uint64_t steps = 0;
  double seconds = 0;  // measured duration of the steps
  double bounds = 0;   // sum of their bounds; each at most the step's seconds
  std::array<double, kBottlenecks> heldBack{};  // total seconds of the steps it limited
  std::vector<float> wholeBatches;              // seconds per step, for the steps with a full batch

  Bottleneck bottleneck() const {
    return static_cast<Bottleneck>(std::max_element(heldBack.begin(), heldBack.end()) -
                                   heldBack.begin());
  }
};

// The best value of a metric in an evaluation.
struct BestValue {
  double value = 0;
  std::uint64_t epoch = 0;
};

// What a run had spent when an evaluation reached ClientSettings::target.
struct ReachedTarget {
  std::uint64_t epoch = 0, steps = 0;
  double seconds = 0;       // as RunSpent::seconds, so with evaluations
  std::uint64_t bytes = 0;  // both ways
};

struct TrainResult {
  std::uint64_t steps = 0;
  std::uint64_t samples = 0;  // number of samples trained on
  ResumeCounts resumed;
  double trainSeconds = 0;
  // Peaks so far of this process's device, and of the body's; with several bodies or replicas, the
  // highest. Bytes; 0: unknown.
  std::uint64_t clientMemory = 0, bodyMemory = 0;
  // Values of the last evaluation, in the order of ScoreSpec::names(); empty before the first one.
  std::vector<std::optional<double>> lastEval;
  // The same of this member's samples, if the members of its cohort train together.
  std::vector<std::optional<double>> lastOwnEval;
  std::optional<ReachedTarget> target;        // absent: not reached, or there is none
  std::optional<BestValue> best;              // best value of ClientSettings::mainMetric()
  std::optional<BestValue> kept;              // best value of ClientSettings::bestMetric
  std::uint64_t stepsSkipped = 0;             // steps skipped because of the loss scale
  std::optional<std::uint64_t> stoppedAfter;  // epoch, if ClientSettings::stop ended the run
  std::optional<StepCosts> costs;             // means per step
  BoundedSteps bounded;
  nlohmann::json quality;  // QualityWatch::summary()
  nlohmann::json cohort;   // who took part; null: the run is not one of a cohort
};

class Trainer {
 public:
  // `run` must be connected. Both objects are borrowed.
  Trainer(TrainRun& run, Progress& progress);

  // Starts the run. The trainer decides on each step.
  void start(const TrainRun::Options& options);

  // `function` is called after each training step with its number.
  void afterEachStep(std::function<void(std::uint64_t step)> function) {
    afterStep_ = std::move(function);
  }
  // No later step begins before this one has ended, even if steps overlap.
  void pauseAfter(std::uint64_t step) { pauseAfter_ = step; }
  // `function` is called after the last step of each epoch, before its evaluation.
  void afterEachEpoch(std::function<void()> function) { afterEpoch_ = std::move(function); }
  // `function` is called after each evaluation that has the best value so far of the metric in
  // keep.best.
  void afterEachBest(std::function<void()> function) { afterBest_ = std::move(function); }
  // `function` is called with the reason, a sentence, when the run falls back to another level.
  void afterEachFallback(std::function<void(const std::string& reason)> function) {
    afterFallback_ = std::move(function);
  }
  // Trains from the initial weights, or from a checkpoint, to the last step. Throws RunError with
  // the cause if the run ended early, for example "non-finite". After "shutting-down", and after
  // "member-left" if that member was interrupted, there is a checkpoint of the last step.
  TrainResult run();

  std::uint64_t steps() const { return result_.steps; }  // number of steps trained so far
  bool hasTrained() const { return hasTrained_; }        // a step since start()
  // What a checkpoint keeps besides the states of stage and engine.
  nlohmann::json notes() const;
  RunSpent spent() const;  // the total so far

 private:
  StepDecision decide(const std::vector<BodyDone>& bodies);
  void checkGradients(std::uint64_t step);
  std::unique_ptr<Loader> trainingLoader(std::uint64_t epoch, std::uint64_t firstBatch = 0) const;
  void beginEpoch();
  void trainEpoch(std::uint64_t epoch);
  bool mayBeginStep() const;
  bool beginStep(std::uint64_t epoch, Loader& loader);
  void finishStep(std::uint64_t epoch);
  void keepIfBest(std::uint64_t epoch);
  bool shouldStop(std::uint64_t epoch);
  void refuseUncounted() const;
  bool evaluationIsDue(std::uint64_t epoch) const;
  bool makesCheckpoint(std::uint64_t step, Checkpointer& checkpointer) const;
  bool isAskedToLeave() const;
  bool precedesLongEvaluation(std::uint64_t step) const;
  bool mayBeLast(std::uint64_t step) const;
  bool overlapsLast(std::uint64_t step) const;
  void leaveIfAsked(Phase next);
  void settle(Checkpointer& checkpointer, double seconds) const;
  void restore(const nlohmann::json& notes);
  std::uint64_t lastStepOf(std::uint64_t epoch) const { return run_.prepared().lastStepOf(epoch); }
  void evaluate(std::uint64_t epoch);
  // Whether the last evaluation has reached ClientSettings::target.
  bool reachesTarget() const;
  // The metric's value in the last evaluation; nullopt if it had none.
  std::optional<double> lastValueOf(const std::string& metric) const;
  // If the metric's value in the last evaluation, after `epoch`, is better than `best` by more than
  // `minChange`, replaces `best` with it. Returns whether `best` was replaced.
  bool updateBest(const std::string& metric, bool isGreatest, std::uint64_t epoch,
                  std::optional<BestValue>& best, double minChange = 0) const;
  const BatchMetrics& evaluateBatch(const Batch& batch, CodecLevel level, std::uint64_t epoch);
  void checkQuality(const Batch& batch, std::uint64_t epoch);
  std::optional<double> lossAt(CodecLevel level, const Batch& batch, std::uint64_t epoch);
  void show(const MicroBatch& at, double seconds);
  void recordStep(const MicroBatch& at, std::uint64_t epoch, double copySeconds = 0);
  bool stepsLeft() const { return result_.steps < totalSteps_; }

  TrainRun& run_;
  const ClientSettings& settings_;
  const Datasets& data_;
  ClientSession& session_;
  Progress& progress_;
  const std::uint64_t totalSteps_;
  StepDecider decider_;
  QualityWatch quality_;

  std::unique_ptr<Loader> nextLoader_;  // created when this epoch's last batch is taken
  // The steps in progress, oldest first: one, or with staleness D up to D + 1.
  struct OpenStep {
    Batch batch;
    MicroBatch at;
    SteadyTime begun;
  };
  std::deque<OpenStep> open_;
  std::uint64_t pauseAfter_ = 0;  // 0: no step
  std::deque<double> norms_;      // the gradients' norms of decided steps that are not recorded
  SteadyTime lastEnd_ = now();    // of the last training step
  std::function<void(std::uint64_t step)> afterStep_ = [](std::uint64_t) {};
  std::function<void()> afterEpoch_ = [] {};
  std::function<void()> afterBest_ = [] {};
  std::function<void(const std::string&)> afterFallback_ = [](const std::string&) {};
  const SteadyTime start_ = now();
  RunSpent spentBefore_;  // spent in earlier processes
  TrainResult result_;
  bool hasTrained_ = false;
  std::uint64_t evalBatches_ = 0;
  BatchMetrics epochMetrics_;
  std::optional<BatchMetrics> evalMetrics_;
  std::optional<double> lastEvalSeconds_;
  double epochSeconds_ = 0;
  std::uint64_t epochSteps_ = 0;
  std::optional<BestValue> stopBest_;  // best value of the metric in train.stop
  std::uint64_t notBetter_ = 0;        // number of evaluations since `stopBest_`
  std::uint64_t checkpointStep_ = 0;   // the last step whose decision requested a checkpoint
  bool isLastStep_ = false;  // the step runs despite Ctrl-C or a shutdown, to make a checkpoint
  StepMeter meter_;
  Progress::State shown_;
};

}  // namespace cleave
