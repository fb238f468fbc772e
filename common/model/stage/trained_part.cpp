#include "common/model/stage/trained_part.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

namespace cleave {

TrainedPart::TrainedPart(const StageOptions& options, const std::vector<BlockSpec>& blocks,
                         int first, int last, at::Device device, std::vector<int> cutsInside,
                         TrainedPart* tied)
    : experiment_(options),
      checkpoint_(options.checkpoint),
      tied_(tied),
      part_(blocks, first, last, std::move(cutsInside)),
      set_(blocks, first, last, options.seed, device, tied == nullptr ? nullptr : &tied->set_),
      isTrained_(std::any_of(
          set_.parameters().begin(), set_.parameters().end(),
          [](const NamedTensor& parameter) { return parameter.tensor.requires_grad(); })),
      optimizer_(makeOptimizer(options.optimizer, set_.parameters())) {
  for (int b = first; b < last; ++b) {
    const BlockSpec& block = blocks[static_cast<std::size_t>(b)];
    for (const NormRow& norm : block.norms) {
      normSizes_.push_back(block.tensors[norm.mean].shape.front());
    }
  }
  if (experiment_.averageDecay > 0) {
    average_ = std::make_unique<ParameterSet>(blocks, first, last, options.seed, device,
                                              tied == nullptr ? nullptr : tied->average_.get());
  }
  std::size_t position = 0;
  for (int b = first; b < last; ++b) {
    for (const ParameterSpec& tensor : blocks[static_cast<std::size_t>(b)].tensors) {
      const at::Tensor average = average_ ? average_->tensors()[position] : at::Tensor();
      if (tensor.decaying) {
        decaying_.add(*tensor.decaying, set_.tensors()[position], average);
      }
      if (tensor.tracked) {
        const bool isEncoder = tensor.tracked->isOfEncoder;
        tracked_.add(*tensor.tracked, set_.tensors()[position],
                     isEncoder ? set_.tensors()[position + kBasisCovariance] : at::Tensor(),
                     average);
      }
      ++position;
    }
  }
}

BlockContext TrainedPart::contextOf(const MicroBatch& at) const {
  BlockContext context{experiment_.seed, at};
  if (checkpoint_) context.checkpoint = &checkpoint_;
  return context;
}

TensorList TrainedPart::forward(TensorList x, const TensorList& batch, const MicroBatch& at) {
  BlockContext context = contextOf(at);
  if (at.phase == Phase::train) {
    step_ = at.step;
    context.statistics = &statistics_[{keyOf(at.step), at.i}];
    context.statistics->clear();
  }
  return part_.forward(std::move(x), batch, at.phase == Phase::train ? setFor(at) : evaluatedSet(),
                       context);
}

TensorList TrainedPart::recompute(TensorList x, const TensorList& batch, const MicroBatch& at) {
  const at::AutoGradMode recordGraph(true);
  return part_.forward(std::move(x), batch, setFor(at), contextOf(at));
}

void TrainedPart::collectGradients() {
  if (experiment_.staleness == 0) return set_.joinGradients();
  if (steps_.empty()) return;
  const ParameterSet& leaves = steps_.begin()->second;
  collected_ = steps_.begin()->first;
  leaves.joinGradients();
  for (std::size_t p = 0; p < set_.parameters().size(); ++p) {
    at::Tensor& gradient = leaves.parameters()[p].tensor.mutable_grad();
    if (!gradient.defined()) continue;
    set_.parameters()[p].tensor.mutable_grad() = gradient;
    gradient.reset();
  }
}

GradientReport TrainedPart::gradientReport() {
  collectGradients();
  return part_.gradientReport(set_);
}

GradientReport TrainedPart::gradientReport(std::uint64_t step) const {
  const ParameterSet& set = leavesOf(step);
  set.joinGradients();
  return part_.gradientReport(set);
}

// Returns the parameters that have the gradients of this step.
const ParameterSet& TrainedPart::leavesOf(std::uint64_t step) const {
  if (step == collected_) return set_;
  const auto leaves = steps_.find(step);
  return leaves == steps_.end() ? set_ : leaves->second;
}

void TrainedPart::update(const StepDecision& decision) {
  tracked_.check(decision);
  collectGradients();
  decaying_.addPenalty(decision);
  if (experiment_.clipValue > 0 && decision.apply) {
    const at::NoGradGuard noGrad;
    // The optimizer divides gradients by this factor.
    const double limit = experiment_.clipValue * decision.lossScale / decision.clipFactor;
    for (const NamedTensor& parameter : set_.parameters()) {
      at::Tensor gradient = parameter.tensor.grad();
      if (gradient.defined()) gradient.clamp_(-limit, limit);
    }
  }
  optimizer_->update(decision);
  const auto end = experiment_.staleness > 0 ? statistics_.lower_bound({decision.step + 1, 0})  //
                                             : statistics_.end();
  if (decision.apply) {
    for (auto each = statistics_.begin(); each != end; ++each) set_.addStatistics(each->second);
    if (average_) moveAverage(decision.step);
  }
  statistics_.erase(statistics_.begin(), end);
  set_.clearGradients();
  decaying_.drop(decision.step);
  tracked_.install(decision);
  if (experiment_.staleness > 0) addVersion(decision.step);
}

void TrainedPart::moveAverage(std::uint64_t step) {
  const at::NoGradGuard noGrad;
  const auto n = static_cast<double>(step);
  const double decay = std::min(experiment_.averageDecay, (1 + n) / (10 + n));
  const std::vector<NamedTensor> weights = weightsOf(set_), averages = weightsOf(*average_);
  for (std::size_t w = 0; w < weights.size(); ++w) {
    at::Tensor average = averages[w].tensor;
    if (average.is_floating_point()) {
      average.lerp_(weights[w].tensor, 1 - decay);
    } else {
      average.copy_(weights[w].tensor);
    }
  }
}

// ---- Versions of the parameters, with staleness ----

const ParameterSet& TrainedPart::setFor(const MicroBatch& at) {
  if (experiment_.staleness == 0) return set_;
  const auto found = steps_.find(at.step);
  if (found != steps_.end()) return found->second;
  const ParameterSet* const tiedLeaves = tied_ == nullptr ? nullptr : &tied_->setFor(at);
  ParameterSet leaves =
      set_.leaves(valuesFor(at.step), tied_ == nullptr ? nullptr : &tied_->set_, tiedLeaves);
  return steps_.emplace(at.step, std::move(leaves)).first->second;
}

const std::vector<at::Tensor>& TrainedPart::valuesFor(std::uint64_t step) {
  const std::uint64_t version = isTrained_ ? versionFor(step, experiment_.staleness) : 0;
  if (versions_.empty()) versions_[version] = copyValues();
  return versions_.at(version);
}

std::vector<at::Tensor> TrainedPart::copyValues() const {
  std::vector<at::Tensor> values;
  for (const NamedTensor& parameter : set_.parameters()) {
    const at::Tensor value = parameter.tensor.detach();
    values.push_back(parameter.tensor.requires_grad() ? value.clone() : value);
  }
  return values;
}

// Call after the update of `step`. The new version uses the memory of one that is no longer needed.
void TrainedPart::addVersion(std::uint64_t step) {
  steps_.erase(step);
  if (versions_.empty() || !isTrained_) return;
  const std::uint64_t oldest = versionFor(step + 1, experiment_.staleness);
  if (versions_.begin()->first >= oldest) {
    versions_[step] = copyValues();
    return;
  }
  auto version = versions_.extract(versions_.begin());
  for (std::size_t p = 0; p < version.mapped().size(); ++p) {
    const NamedTensor& parameter = set_.parameters()[p];
    if (parameter.tensor.requires_grad()) version.mapped()[p].copy_(parameter.tensor.detach());
  }
  version.key() = step;
  versions_.insert(std::move(version));
}

}  // namespace cleave
