// A batch at the stage with the targets: its inputs, loss and metrics.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "common/device/compute_device.h"
#include "common/model/stage/stage.h"

namespace cleave {

// A tensor that shares the memory of an array of a batch.
at::Tensor borrowedArray(const TensorView& array);

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
  // Those of this client's samples, also after setMetrics().
  const BatchMetrics& ownMetrics() const { return own_ ? *own_ : metrics_; }
  // Replaces the metrics by those of all members of a cohort.
  void setMetrics(BatchMetrics metrics) { own_ = std::exchange(metrics_, std::move(metrics)); }
  const std::vector<float>& losses() const { return losses_; }
  // From now on, the model's outputs of each batch are kept until the next batch.
  void keepOutputs() { keepsOutputs_ = true; }
  // The outputs of the whole batch, [samples, …], fp32, on the CPU.
  at::Tensor outputs() const;

 private:
  void checkClasses() const;
  double weightOfWhole() const;
  at::Tensor slice(const TensorView& array, const MicroBatch& at) const;  // borrowed
  void count(const MicroBatch& at, float loss, const LossRows& rows);

  ScoreSpec scores_;
  const LossRow& loss_;
  Shape output_;
  ComputeDevice& device_;
  BatchView batch_;
  double weight_ = 1;  // weight of the whole batch
  BatchMetrics metrics_;
  std::optional<BatchMetrics> own_;
  std::vector<float> losses_;
  bool keepsOutputs_ = false;
  std::vector<at::Tensor> outputs_;  // by micro-batch
};

}  // namespace cleave
