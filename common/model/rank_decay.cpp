#include "common/model/rank_decay.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

namespace cleave {

std::int64_t RankDecay::rankAt(std::uint64_t step) const {
  std::int64_t current = rank;
  const std::uint64_t before = step > 0 ? step - 1 : 0;
  for (std::uint64_t drops = before / everySteps; drops > 0; --drops) {
    const auto rest = static_cast<std::int64_t>(std::floor(share * static_cast<double>(current)));
    const std::int64_t next = std::max(minRank, rest);
    if (next == current) break;
    current = next;
  }
  return current;
}

void DecayingParameters::add(const DecayingFeatures& features, const at::Tensor& parameter,
                             const at::Tensor& average) {
  rows_.push_back({features, parameter, average});
}

void DecayingParameters::addPenalty(const StepDecision& decision) const {
  const at::NoGradGuard noGrad;
  for (const Row& row : rows_) {
    const RankDecay& decay = row.features.decay;
    const at::Tensor& gradient = row.parameter.grad();
    const std::int64_t rank = decay.rankAt(decision.step);
    const std::int64_t rest = decay.rankAt(decision.step + decay.everySteps);
    if (!decision.apply || !gradient.defined() || decay.l1 == 0 || rest == rank) continue;
    const auto dropped = [&](const at::Tensor& tensor) {
      return tensor.narrow(row.features.dimension, rest, rank - rest);
    };
    // The optimizer multiplies gradients by this factor.
    const double factor = decision.clipFactor / decision.lossScale;
    dropped(gradient).add_(dropped(row.parameter).sign(), decay.l1 / factor);
  }
}

void DecayingParameters::drop(std::uint64_t step) const {
  const at::NoGradGuard noGrad;
  for (const Row& row : rows_) {
    const RankDecay& decay = row.features.decay;
    const std::int64_t rank = decay.rankAt(step + 1);
    for (const at::Tensor& tensor : {row.parameter, row.average}) {
      if (!tensor.defined() || rank == decay.rank) continue;
      tensor.narrow(row.features.dimension, rank, decay.rank - rank).zero_();
    }
  }
}

}  // namespace cleave
