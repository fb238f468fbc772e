// Consecutive blocks in training.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/model/rank_decay.h"
#include "common/model/stage/stage.h"
#include "common/model/tracked_basis.h"

namespace cleave {

// The blocks' parameters, their optimizer, and the batch norms' statistics of the current step.
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
  // this part may share, see ParameterSet; borrowed.
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
  // What the part adds to a sum over replicas or members. The gradients of `step` are those of its
  // leaves or, once they are collected, of set().
  std::size_t shareSize() const;
  void writeShare(std::uint64_t step, std::span<float> share) const;
  void readSum(std::uint64_t step, std::span<const float> sum);
  // The new bases of the encoders (tracked_basis.h) in the step of the last training forward.
  std::vector<InsertBasis> nextBases() { return tracked_.next(step_); }
  // Throws RunError "bad-tensor" if the decision has bases that this part does not need.
  void refuseOtherBases(const StepDecision& decision) const { tracked_.refuseOthers(decision); }
  // The leaves of a training step, which get its gradients.
  const ParameterSet& leavesFor(const MicroBatch& at) { return setFor(at); }
  // Updates the parameters, adds the step's statistics to the running statistics in the order of
  // the micro-batches, regardless of the order of their forwards, and clears the gradients. A
  // skipped step changes neither parameters nor running statistics: it usually has non-finite
  // gradients, so its statistics may contain a NaN, which would stay in the running statistics
  // forever. After either, drops the features of inserts whose rank shrinks.
  // Throws RunError "bad-tensor" for bases that do not fit, before anything changes.
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
  std::uint64_t keyOf(std::uint64_t step) const { return experiment_.staleness > 0 ? step : 0; }
  std::size_t slotSize() const;
  const std::vector<at::Tensor>& valuesFor(std::uint64_t step);
  std::vector<at::Tensor> copyValues() const;
  void addVersion(std::uint64_t step);
  Versions takeVersions(std::vector<NamedTensor>& saved) const;

  const Experiment experiment_;
  const std::function<void()> checkpoint_;  // StageOptions::checkpoint
  std::vector<std::int64_t> normSizes_;     // channels of each batch norm
  TrainedPart* const tied_;
  ModelPart part_;
  ParameterSet set_;
  const bool isTrained_;                   // whether the part has trained parameters of its own
  std::unique_ptr<ParameterSet> average_;  // null: none
  DecayingParameters decaying_;
  TrackedBases tracked_;
  std::uint64_t step_ = 0;       // of the last training forward
  std::uint64_t collected_ = 0;  // with staleness: the step whose gradients set_ has, or had last
  std::unique_ptr<Optimizer> optimizer_;
  // By step (0 without staleness) and micro-batch of the whole batch.
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::vector<NormStatistics>> statistics_;
  Versions versions_;                            // empty before the first step
  std::map<std::uint64_t, ParameterSet> steps_;  // by step
};
// Throws RunError "bad-checkpoint" unless all tensors have been taken.
void checkAllTaken(const std::vector<NamedTensor>& saved);

}  // namespace cleave
