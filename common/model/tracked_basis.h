// Learned inserts whose basis follows the tensors that they encode (kind "pca", inserts.cpp). Their
// tensors are buffers, which gradients do not change. The covariance is a running statistic of
// training's micro-batches, like those of a batch norm. Every few steps the part with the encoder
// computes a new basis from it, which takes effect with the step's update: in the encoder, and in
// the decoder, whose part gets it with the decision.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/topology/step.h"

namespace cleave {

// A weight whose rows are the basis.
struct TrackedBasis {
  std::uint32_t cut = 0;         // of the insert
  std::uint64_t everySteps = 0;  // the steps n x everySteps have a new basis
  bool isOfEncoder = false;
};

// Positions of an encoder's mean and covariance, after its weight.
inline constexpr std::size_t kBasisMean = 1;
inline constexpr std::size_t kBasisCovariance = 2;

// The weights of a part that are bases. Shares their memory.
class TrackedBases {
 public:
  // `covariance`: undefined for a decoder. `average`: the weight's moving average; undefined: none.
  void add(const TrackedBasis& basis, const at::Tensor& weight, const at::Tensor& covariance,
           const at::Tensor& average);

  // The new bases of the encoders in a step, also kept for its install(). They depend on the
  // covariance before the step's own update. Throws RunError "non-finite".
  std::vector<InsertBasis> next(std::uint64_t step);
  // Throws RunError "bad-tensor" unless the decision has one valid basis, of orthonormal rows, for
  // each decoder that needs one in this step. Call before anything of the step changes.
  void check(const StepDecision& decision) const;
  // Throws RunError "bad-tensor" if the decision has a basis for a decoder of another part.
  void refuseOthers(const StepDecision& decision) const;
  // Call after each update. A skipped step changes nothing.
  void install(const StepDecision& decision);

 private:
  struct Row {
    TrackedBasis basis;
    at::Tensor weight, covariance, average;
  };
  std::vector<Row> rows_;
  std::vector<InsertBasis> own_;  // of the step in progress
};

// The covariance of rows that have zero mean: [width, width], fp32.
at::Tensor covarianceOf(const at::Tensor& rows);

}  // namespace cleave
