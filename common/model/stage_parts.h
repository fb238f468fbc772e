// Code shared by the stages of body, client and whole model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "common/device/compute_device.h"
#include "common/model/stage.h"

namespace cleave {

inline std::uint32_t sizeOf(const MicroBatch& at) {
  return microBatchSize(at.samples, at.microBatches, at.i);
}

// Outputs of actions that wait instead of computing. Each micro-batch has its own tensor, allocated
// once, so that the tensors are in separate memory, as computed ones are. The values are
// meaningless but distributed as codecs and optimizers expect: activations as after ReLU6, half of
// them zeros; gradients small.
class Placeholders {
 public:
  // Returns `milliseconds` after the call; the first call for a micro-batch also makes its tensor
  // and may take longer.
  Payload wait(double milliseconds, Flow flow, const MicroBatch& at, const TensorSpec& spec);

 private:
  std::map<std::tuple<Flow, std::uint32_t, std::vector<std::int64_t>>, at::Tensor> tensors_;
};
// One cut, as the stage on either side of it sees it. Tensors that enter are checked: the engine
// has done that before, so a different spec is a bug in Cleave and throws std::logic_error.
class StageCut {
 public:
  // Cut 0 or 1. The device is borrowed.
  StageCut(const StageOptions& options, const std::vector<BlockSpec>& blocks, int cut,
           ComputeDevice& device);

  bool hasGradients() const { return !gradients_.empty(); }
  // Detaches the outputs from autograd, makes them canonical, and copies them to host memory, or
  // leaves them on the device if their codec runs there.
  TensorBundle leave(const TensorList& outputs) const;
  // Returns the activations on the stage's device. With `training`, those that have gradients are
  // leaves that require one.
  TensorList enter(const MicroBatch& at, TensorBundle activations, bool training) const;
  // Returns the gradients of the leaves that enter() returned.
  TensorBundle leaveGradients(const TensorList& leaves) const;
  // Backpropagates the gradients into the outputs that were passed to leave().
  void backward(const MicroBatch& at, const TensorList& outputs, TensorBundle gradients) const;

  // For actions that wait instead of computing.
  TensorBundle waitForActivations(double milliseconds, const MicroBatch& at);
  TensorBundle waitForGradients(double milliseconds, const MicroBatch& at);

 private:
  TensorBundle wait(double milliseconds, const std::vector<Flow>& flows, const MicroBatch& at);
  Payload leaving(const at::Tensor& tensor, Flow flow) const;
  at::Tensor entering(const MicroBatch& at, Payload payload, Flow flow) const;

  TensorSpec specOf(Flow flow, const MicroBatch& at) const;

  FlowMap<bool> staysOnDevice_;
  std::vector<BlockOutput> tensors_;
  std::vector<Flow> activations_, gradients_;
  ComputeDevice& device_;
  Placeholders placeholders_;
};

// Consecutive blocks in training: their parameters, their optimizer, and the batch norms'
// statistics of the current step.
class TrainedPart {
 public:
  // Blocks [first, last); `cutsInside` as in ModelPart.
  // `tied`: another part whose parameters this one may share, see ParameterSet; borrowed during the
  // call.
  TrainedPart(const StageOptions& options, const std::vector<BlockSpec>& blocks, int first,
              int last, at::Device device, std::vector<int> cutsInside = {},
              const TrainedPart* tied = nullptr);

  // As ModelPart::forward(). In training, also keeps the statistics of micro-batch at.i until
  // update(); in evaluation, uses evaluatedSet().
  TensorList forward(TensorList x, const TensorList& batch, const MicroBatch& at);
  // Repeats a training forward for its backward, with autograd; keeps no statistics.
  TensorList recompute(TensorList x, const TensorList& batch, const MicroBatch& at) const;
  GradientReport gradientReport() const;
  // Updates the parameters, adds the step's statistics to the running ones in the order of the
  // micro-batches, whatever the order of their forwards, and clears the gradients. A skipped step
  // changes neither: its gradients are usually not finite, and then its statistics may not be
  // either, and a NaN would stay in the running statistics forever.
  void update(const StepDecision& decision);
  const ParameterSet& set() const { return set_; }
  // The averages if there are any; else set().
  const ParameterSet& evaluatedSet() const { return average_ ? *average_ : set_; }
  // As loadWeights(), also into the averages.
  void load(const std::vector<NamedTensor>& weights);

  // See BodyStage::save().
  std::vector<NamedTensor> save() const;
  // Takes the tensors of this part out of `saved`. Throws as BodyStage::restore(), before it
  // changes anything.
  void restore(std::vector<NamedTensor>& saved);

 private:
  void moveAverage(std::uint64_t step);

  std::uint64_t seed_;
  ModelPart part_;
  ParameterSet set_;
  double averageDecay_;
  std::unique_ptr<ParameterSet> average_;  // null: none
  std::unique_ptr<Optimizer> optimizer_;
  std::map<std::uint32_t, std::vector<NormStatistics>> statistics_;  // by micro-batch
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
  // loss_i, which the caller may backpropagate. Adds the micro-batch to metrics and losses.
  at::Tensor loss(const at::Tensor& output, const MicroBatch& at);
  // Throws RunError "non-finite" if the loss of `at` is not finite. The message says whether
  // `activations1`, from which the loss was computed, were finite.
  void checkLoss(const MicroBatch& at, const TensorList& activations1) const;
  // Counts a micro-batch whose loss was not computed; its loss is recorded as 0.
  void countOnly(const MicroBatch& at);

  const BatchMetrics& metrics() const { return metrics_; }
  const std::vector<float>& losses() const { return losses_; }
  // From now on, the model's outputs of each batch are kept until the next.
  void keepOutputs() { keepsOutputs_ = true; }
  // The outputs of the whole batch, [samples, …], fp32, on the CPU.
  at::Tensor outputs() const;

 private:
  void checkClasses() const;
  at::Tensor slice(const TensorView& array, const MicroBatch& at) const;  // borrowed
  void count(const MicroBatch& at, float loss, const LossRows* rows);

  ScoreSpec scores_;
  const LossRow& loss_;
  Shape output_;
  ComputeDevice& device_;
  BatchView batch_;
  double weight_ = 1;  // of the batch
  BatchMetrics metrics_;
  std::vector<float> losses_;
  bool keepsOutputs_ = false;
  std::vector<at::Tensor> outputs_;  // by micro-batch
};

// Waits without a tensor.
void waitFor(double milliseconds);

}  // namespace cleave
