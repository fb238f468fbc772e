// Code shared by the stages of body, client and whole model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/device/compute_device.h"
#include "common/model/rank_decay.h"
#include "common/model/split_backward.h"
#include "common/model/stage.h"

namespace cleave {

// A tensor that shares the memory of an array of a batch.
at::Tensor borrowedArray(const TensorView& array);

// One end of a cut, used by the stages on both of its sides. Checks the specs of entering tensors.
// The engine has already checked them, so a wrong spec is a bug and throws std::logic_error.
class StageCut {
 public:
  // `cut`: one of the numbers in options.cuts. The device is borrowed.
  StageCut(const StageOptions& options, const std::vector<BlockSpec>& blocks, int cut,
           ComputeDevice& device);

  bool hasGradients() const { return !gradients_.empty(); }
  // Detaches the outputs from autograd, makes them canonical, and copies them to host memory, or
  // leaves them on the device if their codec runs there.
  // Throws UsageError "bad-graph" if they are not those that the model declares.
  TensorBundle leave(const MicroBatch& at, const TensorList& outputs) const;
  // Returns the activations on the stage's device. With `training`, those that have gradients are
  // leaves that require one.
  TensorList enter(const MicroBatch& at, TensorBundle activations, bool training) const;
  // Returns the gradients of the leaves that enter() returned. Throws as leave() does.
  TensorBundle leaveGradients(const MicroBatch& at, const TensorList& leaves) const;
  // Backpropagates the gradients into the outputs that were passed to leave().
  void backward(const MicroBatch& at, const TensorList& outputs, TensorBundle gradients) const;
  // Computes only the first part of backward(); `leaves` are those that enter() of the part's other
  // cut returned.
  SplitBackward splitBackward(const MicroBatch& at, const TensorList& outputs,
                              TensorBundle gradients, const TensorList& leaves) const;

 private:
  Roots rootsOf(const MicroBatch& at, const TensorList& outputs, TensorBundle gradients) const;
  Payload leaving(const MicroBatch& at, const at::Tensor& tensor, Flow flow) const;
  void checkLeaving(const MicroBatch& at, const at::Tensor& tensor, Flow flow) const;
  at::Tensor entering(const MicroBatch& at, Payload payload, Flow flow) const;

  TensorSpec specOf(Flow flow, const MicroBatch& at) const;

  FlowMap<bool> staysOnDevice_;
  std::vector<BlockOutput> tensors_;
  std::vector<Flow> activations_, gradients_;
  ComputeDevice& device_;
};

// Consecutive blocks in training: their parameters, their optimizer, and the batch norms'
// statistics of the current step.
//
// With staleness D, each step in progress has leaves of its own, which share the memory of the
// parameters of its version (versionFor()):
//
//   set_                      after update n, the newest one, to which update n + 1 is applied
//   versions_                 copies of the parameters after updates n - D to n
//   steps_                    leaves, and therefore gradients, of the steps in progress
//
// The gradients of the oldest step are moved to set_ before its report or update.
class TrainedPart {
 public:
  // Blocks [first, last); for `cutsInside`, see ModelPart. `tied`: another part, whose parameters
  // this part may share, see ParameterSet; borrowed. `replica`: computes the micro-batches of this
  // replica.
  TrainedPart(const StageOptions& options, const std::vector<BlockSpec>& blocks, int first,
              int last, at::Device device, std::vector<int> cutsInside = {},
              TrainedPart* tied = nullptr);

  // Like ModelPart::forward(). In training, also keeps the statistics of micro-batch at.i until
  // update(); in evaluation, uses evaluatedSet().
  TensorList forward(TensorList x, const TensorList& batch, const MicroBatch& at);
  // Repeats a training forward for its backward, with autograd; keeps no statistics.
  TensorList recompute(TensorList x, const TensorList& batch, const MicroBatch& at);
  // Puts the gradients of the oldest step in progress into set(), and adds those of tied parameters
  // to the ones that they are tied to, also in another part; call it there afterwards. Call when
  // the step's backwards are done; further calls do nothing.
  void collectGradients();
  // Collects the gradients and reports on them.
  GradientReport gradientReport();
  // Reports on the gradients of a step, which need not be the oldest one.
  GradientReport gradientReport(std::uint64_t step) const;
  // See BodyStage.
  std::size_t shareSize() const;
  void writeShare(std::uint64_t step, std::span<float> share) const;
  void readSum(std::uint64_t step, std::span<const float> sum);
  // The leaves of a training step, which get its gradients.
  const ParameterSet& leavesFor(const MicroBatch& at) { return setFor(at); }
  // Updates the parameters, adds the step's statistics to the running statistics in the order of
  // the micro-batches, regardless of the order of their forwards, and clears the gradients. A
  // skipped step changes neither parameters nor running statistics: it usually has non-finite
  // gradients, so its statistics may contain a NaN, which would stay in the running statistics
  // forever. After either, drops the features of inserts whose rank shrinks.
  void update(const StepDecision& decision);
  const ParameterSet& set() const { return set_; }
  // Returns the averages if there are any; otherwise set().
  const ParameterSet& evaluatedSet() const { return average_ ? *average_ : set_; }
  // Like loadWeights(), but loads the weights into the averages too.
  void load(const std::vector<NamedTensor>& weights);

  // See BodyStage::save().
  std::vector<NamedTensor> save() const;
  // Restores this part, and removes its tensors from `saved`. Throws the errors of
  // BodyStage::restore() before it changes anything.
  void restore(std::vector<NamedTensor>& saved);

 private:
  // Number of updates; the values of parameters(), of which only the trained ones are copies.
  using Versions = std::map<std::uint64_t, std::vector<at::Tensor>>;

  void moveAverage(std::uint64_t step);
  const ParameterSet& setFor(const MicroBatch& at);
  const ParameterSet& leavesOf(std::uint64_t step) const;
  BlockContext contextOf(const MicroBatch& at) const;
  std::uint64_t keyOf(std::uint64_t step) const { return staleness_ > 0 ? step : 0; }
  std::size_t slotSize() const;
  const std::vector<at::Tensor>& valuesFor(std::uint64_t step);
  std::vector<at::Tensor> copyValues() const;
  void addVersion(std::uint64_t step);
  Versions takeVersions(std::vector<NamedTensor>& saved) const;

  std::uint64_t seed_;
  const std::uint32_t staleness_;
  const std::uint32_t microBatches_;        // StageOptions::microBatches
  const std::function<void()> checkpoint_;  // StageOptions::checkpoint
  std::vector<std::int64_t> normSizes_;     // channels of each batch norm
  TrainedPart* const tied_;
  ModelPart part_;
  ParameterSet set_;
  const bool isTrained_;  // whether the part has trained parameters of its own
  double averageDecay_;
  std::unique_ptr<ParameterSet> average_;  // null: none
  DecayingParameters decaying_;
  std::unique_ptr<Optimizer> optimizer_;
  // By step (0 without staleness) and micro-batch of the whole batch.
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::vector<NormStatistics>> statistics_;
  Versions versions_;                            // empty before the first step
  std::map<std::uint64_t, ParameterSet> steps_;  // by step
};
// The gradients of a body with replicas, in the whole model: each replica's micro-batches have
// gradients of their own. One training batch.
class ReplicaGradients {
 public:
  // `set`: the whole model's leaves of the batch; borrowed.
  ReplicaGradients(const StageOptions& options, const std::vector<BlockSpec>& blocks,
                   const ParameterSet& set);

  // Call before and after the backward of micro-batch i.
  void begin(std::uint32_t i);
  void end(std::uint32_t i);
  // Call after the last backward. Adds the replicas' gradients in rank order.
  void sum();

 private:
  void swap(std::size_t replica);

  const ParameterSet& set_;
  TensorList leaves_;                  // trained parameters of the body
  std::vector<TensorList> gradients_;  // by replica
};

// Throws RunError "bad-checkpoint" unless all tensors have been taken.
void checkAllTaken(const std::vector<NamedTensor>& saved);

// A batch with its target, and its loss and metrics.
class LabeledBatch {
 public:
  // `output`: the shape of the model's output, without the batch.
  LabeledBatch(const ScoreSpec& scores, Shape output, ComputeDevice& device)
      : scores_(scores),
        loss_(findLoss(scores.loss.name)),
        output_(std::move(output)),
        device_(device) {}

  // The batch is borrowed. Resets metrics and losses. Throws UsageError if a target is not a class
  // of the model, or does not fit the loss.
  void begin(const BatchView& batch);
  std::uint32_t samples() const { return batch_.samples(); }

  TensorList inputs(const MicroBatch& at) const;  // on the device
  // Returns loss_i, which the caller may backpropagate. Adds the micro-batch to metrics and losses.
  at::Tensor loss(const at::Tensor& output, const MicroBatch& at);
  // Throws RunError "non-finite" if the loss of `at` is not finite. The message says whether
  // `activations1`, from which the loss was computed, were finite.
  void checkLoss(const MicroBatch& at, const TensorList& activations1) const;

  const BatchMetrics& metrics() const { return metrics_; }
  const std::vector<float>& losses() const { return losses_; }
  // From now on, the model's outputs of each batch are kept until the next batch.
  void keepOutputs() { keepsOutputs_ = true; }
  // The outputs of the whole batch, [samples, …], fp32, on the CPU.
  at::Tensor outputs() const;

 private:
  void checkClasses() const;
  at::Tensor slice(const TensorView& array, const MicroBatch& at) const;  // borrowed
  void count(const MicroBatch& at, float loss, const LossRows& rows);

  ScoreSpec scores_;
  const LossRow& loss_;
  Shape output_;
  ComputeDevice& device_;
  BatchView batch_;
  double weight_ = 1;  // weight of the batch
  BatchMetrics metrics_;
  std::vector<float> losses_;
  bool keepsOutputs_ = false;
  std::vector<at::Tensor> outputs_;  // by micro-batch
};

}  // namespace cleave
