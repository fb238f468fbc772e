// Learned inserts whose rank shrinks during training (kind "decaying", inserts.cpp). The rank
// follows from the number of the step alone, so that all parts of a model drop the same features at
// the same time, without messages or state.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "common/topology/step.h"

namespace cleave {

struct RankDecay {
  std::int64_t rank = 0;         // number of features at the start
  std::int64_t minRank = 0;      // at most `rank`
  double share = 0;              // of the features that remain after each interval
  std::uint64_t everySteps = 0;  // length of an interval
  double l1 = 0;                 // coefficient of the L1 penalty on features about to be dropped

  // The number of features with which training step 1, 2, … is computed: the first ones. Each
  // interval has the share of the previous interval's features, rounded down.
  std::int64_t rankAt(std::uint64_t step) const;
};

// How a parameter stores the features: each is a slice along `dimension`.
struct DecayingFeatures {
  RankDecay decay;
  std::int64_t dimension = 0;
};

// The parameters of a part that have such features. Shares their memory.
class DecayingParameters {
 public:
  // `average`: the parameter's moving average; undefined: none.
  void add(const DecayingFeatures& features, const at::Tensor& parameter,
           const at::Tensor& average);

  // Adds l1 x sign(w) to the gradients of those weights that will be dropped at the end of the
  // current interval. The clip factor does not scale it, as it does not scale weight decay. Call
  // before the optimizer applies the decision.
  void addPenalty(const StepDecision& decision) const;
  // Sets the weights and averages of all features that step + 1 does not have to zero. Call after
  // each update, also after a skipped one: the optimizer's state, or a gradient for older weights,
  // could change weights that have already been zero.
  void drop(std::uint64_t step) const;

 private:
  struct Row {
    DecayingFeatures features;
    at::Tensor parameter, average;
  };
  std::vector<Row> rows_;
};

}  // namespace cleave
