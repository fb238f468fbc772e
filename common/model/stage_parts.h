// What the stages of body, client and whole model share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "common/model/compute_device.h"
#include "common/model/stage.h"

namespace cleave {

// The model's blocks, after checking that the cuts fit them.
std::vector<BlockRow> checkedBlocks(const StageOptions& options);

inline std::uint32_t sizeOf(const MicroBatch& at) {
  return microBatchSize(at.samples, at.microBatches, at.i);
}

// A tensor as it leaves a stage: out of autograd, canonical, and in host memory, or, where it
// `stays`, on the device.
Payload leavingPayload(const at::Tensor& tensor, ComputeDevice& device, bool stays);
// A tensor as it enters a stage, on its device, where it may have been already. The engine has
// checked it: another spec is a bug of ours.
at::Tensor enteringTensor(Payload payload, const TensorSpec& expected, ComputeDevice& device);

// A batch with its labels, and what the loss says of it.
class LabeledBatch {
 public:
  LabeledBatch(const ModelSpec& model, ComputeDevice& device) : model_(model), device_(device) {}

  // Both are borrowed. Starts metrics and losses anew. Throws UsageError: a label that is no class
  // of the model.
  void begin(TensorView inputs, std::span<const std::int64_t> labels);
  std::uint32_t samples() const { return static_cast<std::uint32_t>(labels_.size()); }

  at::Tensor inputs(const MicroBatch& at) const;  // on the device
  // loss_i, of which the caller may ask gradients. Adds the micro-batch to metrics and losses.
  at::Tensor loss(const at::Tensor& logits, const MicroBatch& at);
  // Throws RunError "non-finite" where the loss of `at` is none; `activation1`, from which it was
  // made, tells where to look.
  void checkLoss(const MicroBatch& at, const at::Tensor& activation1) const;
  // Counts a micro-batch whose loss nobody computed.
  void countOnly(const MicroBatch& at);

  const BatchMetrics& metrics() const { return metrics_; }
  const std::vector<float>& losses() const { return losses_; }

 private:
  std::span<const std::int64_t> labels(const MicroBatch& at) const;
  void setLoss(const MicroBatch& at, float loss);

  ModelSpec model_;
  ComputeDevice& device_;
  TensorView inputs_;
  std::span<const std::int64_t> labels_;
  BatchMetrics metrics_;
  std::vector<float> losses_;
};

// What actions that wait hand on: tensors made once, one a micro-batch, as computed ones lie apart
// in memory too. Their values mean nothing, but are distributed as codecs and optimizers expect:
// activations as after ReLU6, half of them zeros; gradients small.
class Placeholders {
 public:
  // Returns `milliseconds` after it was called; the first time in a micro-batch, later.
  Payload wait(double milliseconds, Flow flow, const MicroBatch& at, const TensorSpec& spec);

 private:
  std::map<std::tuple<Flow, std::uint32_t, std::vector<std::int64_t>>, at::Tensor> tensors_;
};
// The same without a tensor.
void waitFor(double milliseconds);

}  // namespace cleave
