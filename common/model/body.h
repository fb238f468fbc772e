// The body of a model, as the engine's actions use it: in this process (BodyStage), or in a process
// of its own (stage/remote_body.h). Device thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/codec/tensor.h"
#include "common/topology/step.h"

namespace cleave {

class Body {
 public:
  virtual ~Body() = default;

  // Computes the tensors of the body's last cut from those of its first cut. Keeps nothing for a
  // backward in evaluation.
  virtual TensorBundle forward(const MicroBatch& at, TensorBundle activations0) = 0;
  // Computes the gradients at the first cut from those at the last cut, and those of the weights,
  // unless the backward is split.
  virtual TensorBundle backward(const MicroBatch& at, TensorBundle gradients1) = 0;
  // Computes the gradients of the weights, if the backward is split. Call for the micro-batches in
  // the same order as backward().
  virtual void backwardWeights(const MicroBatch& at) = 0;
  // The report on a step; 0: the oldest step in progress. Call after the step's last backward and,
  // if the body has replicas, after readSum().
  virtual GradientReport report(std::uint64_t step) = 0;
  // With replicas, each one writes its share of a step after the step's last backward, and the
  // shares are added. A share has the gradients of the trained parameters and, if there are batch
  // norms, their statistics for each micro-batch of the whole batch: zeros for those of other
  // replicas.
  virtual std::size_t shareSize() = 0;
  virtual void writeShare(std::uint64_t step, std::span<float> share) = 0;
  // Replaces the step's gradients and statistics. `sum`: the sum of all shares.
  virtual void readSum(std::uint64_t step, std::span<const float> sum) = 0;
  virtual void update(const StepDecision& decision) = 0;  // clears the gradients of that step
  // Depends on each bit of the trained weights.
  virtual std::uint64_t weightsDigest() = 0;

  // Return a safetensors file: exportWeights() of the body's parameters and buffers, or their
  // averages if there are any; exportGradients() of the existing gradients of the oldest step.
  virtual std::vector<std::byte> exportWeights() = 0;
  virtual std::vector<std::byte> exportGradients() = 0;
  // Loads weights like loadWeights().
  virtual void importWeights(std::span<const std::byte> file) = 0;

  // All state that the body keeps between steps, as a safetensors file: see BodyStage::save().
  virtual std::vector<std::byte> saveFile() = 0;
  // Restores what saveFile() returned. Throws RunError "bad-checkpoint".
  virtual void restoreFile(std::span<const std::byte> file) = 0;
};

}  // namespace cleave
