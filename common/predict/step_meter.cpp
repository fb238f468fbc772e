#include "common/predict/step_meter.h"

namespace cleave {

std::optional<StepCosts> StepMeter::measure(const MicroBatch& at, const ActionSeconds& actions,
                                            const LinkTotals& totals, const LinkSpeed& link) {
  const auto secondsOf = [&](ActionKind kind) { return actions[indexOf(kind)]; };
  StepCosts costs = last_;
  costs.microBatches = at.microBatches;
  for (std::size_t k = 0; k < kScheduledKinds; ++k) costs.seconds[k] = actions[k] / at.microBatches;
  costs.updateSeconds = secondsOf(ActionKind::decide) + secondsOf(ActionKind::update);
  costs.latency = link.roundTripSeconds / 2;
  costs.rateUp = link.rateUp;
  costs.rateDown = link.rateDown;
  bool known = true;
  for (std::size_t f = 0; f < kTensorFlows; ++f) {
    // Transfers are recorded with a delay: a step may see those of the previous step, or none.
    const LinkTotals::FlowTotals& before = before_.flows[f];
    const LinkTotals::FlowTotals& after = totals.flows[f];
    const auto tensors = static_cast<double>(after.tensors - before.tensors);
    if (tensors > 0) {
      costs.bytes[f] = static_cast<double>(after.wireBytes - before.wireBytes) / tensors;
      costs.encodeSeconds[f] = (after.encodeSeconds - before.encodeSeconds) / tensors;
      costs.decodeSeconds[f] = (after.decodeSeconds - before.decodeSeconds) / tensors;
    }
    known = known && costs.bytes[f] > 0;
  }
  before_ = totals;
  last_ = costs;
  if (!known) return std::nullopt;
  if (warm_) add(costs);
  warm_ = true;
  return costs;
}

void StepMeter::add(const StepCosts& costs) {
  if (steps_ > 0 && costs.microBatches < sum_.microBatches) return;
  if (steps_ > 0 && costs.microBatches > sum_.microBatches) steps_ = 0;
  if (steps_ == 0) {
    sum_ = costs;
  } else {
    for (std::size_t k = 0; k < kScheduledKinds; ++k) sum_.seconds[k] += costs.seconds[k];
    for (std::size_t f = 0; f < kTensorFlows; ++f) {
      sum_.bytes[f] += costs.bytes[f];
      sum_.encodeSeconds[f] += costs.encodeSeconds[f];
      sum_.decodeSeconds[f] += costs.decodeSeconds[f];
    }
    sum_.updateSeconds += costs.updateSeconds;
    sum_.rateUp = costs.rateUp;
    sum_.rateDown = costs.rateDown;
    sum_.latency = costs.latency;
  }
  ++steps_;
}

std::optional<StepCosts> StepMeter::mean() const {
  if (steps_ == 0) return std::nullopt;
  StepCosts mean = sum_;
  const auto steps = static_cast<double>(steps_);
  for (double& seconds : mean.seconds) seconds /= steps;
  for (double& bytes : mean.bytes) bytes /= steps;
  for (double& seconds : mean.encodeSeconds) seconds /= steps;
  for (double& seconds : mean.decodeSeconds) seconds /= steps;
  mean.updateSeconds /= steps;
  return mean;
}

}  // namespace cleave
