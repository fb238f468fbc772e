#include "common/predict/step_meter.h"

#include <utility>

namespace cleave {
namespace {

constexpr ActionKind kKinds[] = {ActionKind::headForward,  ActionKind::tailStep,
                                 ActionKind::headBackward, ActionKind::bodyForward,
                                 ActionKind::bodyBackward, ActionKind::bodyWeights};

}  // namespace

// All tensors of a cut count as one flow.
StepMeter::StepMeter(const Place& place) {
  last_.body().place = place;
  last_.body().place.first.resize(1);
  last_.body().place.last.resize(1);
}

std::optional<StepCosts> StepMeter::measure(const MicroBatch& at, const ActionSeconds& actions,
                                            const LinkTotals& totals, const LinkSpeed& link) {
  StepCosts costs = last_;
  costs.microBatches = at.microBatches;
  for (const ActionKind kind : kKinds) costs.of(kind) = actions[indexOf(kind)] / at.microBatches;
  costs.body().backward += costs.body().weights;
  costs.updateSeconds = actions[indexOf(ActionKind::decide)] + actions[indexOf(ActionKind::update)];
  costs.body().latency = link.roundTripSeconds / 2;
  costs.body().rateUp = link.rateUp;
  costs.body().rateDown = link.rateDown;
  bool known = true;
  for (const Flow flow : costs.body().place.flows()) {
    // Transfers are recorded with a delay: a step may see those of the previous step, or none.
    FlowCosts sum;
    double microBatches = 0;
    for (const auto& [each, after] : totals.flows) {
      if (each.kind != flow.kind || each.cut != flow.cut) continue;
      const LinkTotals::FlowTotals before = before_.flows.get(each);
      sum.bytes += static_cast<double>(after.wireBytes - before.wireBytes);
      sum.encodeSeconds += after.encodeSeconds - before.encodeSeconds;
      sum.decodeSeconds += after.decodeSeconds - before.decodeSeconds;
      if (each == flow) microBatches = static_cast<double>(after.tensors - before.tensors);
    }
    FlowCosts& tensor = costs.flows[flow];
    if (microBatches > 0) {
      tensor = {sum.bytes / microBatches, sum.encodeSeconds / microBatches,
                sum.decodeSeconds / microBatches};
    }
    known = known && tensor.bytes > 0;
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
    const StepCosts before = std::exchange(sum_, costs);
    for (const ActionKind kind : kKinds) sum_.of(kind) += before.of(kind);
    for (auto& [flow, tensor] : sum_.flows) {
      const FlowCosts& others = before.flows.at(flow);
      tensor.bytes += others.bytes;
      tensor.encodeSeconds += others.encodeSeconds;
      tensor.decodeSeconds += others.decodeSeconds;
    }
    sum_.updateSeconds += before.updateSeconds;
  }
  ++steps_;
}

std::optional<StepCosts> StepMeter::mean() const {
  if (steps_ == 0) return std::nullopt;
  StepCosts mean = sum_;
  const auto steps = static_cast<double>(steps_);
  for (const ActionKind kind : kKinds) mean.of(kind) /= steps;
  for (auto& [flow, tensor] : mean.flows) {
    tensor.bytes /= steps;
    tensor.encodeSeconds /= steps;
    tensor.decodeSeconds /= steps;
  }
  mean.updateSeconds /= steps;
  return mean;
}

}  // namespace cleave
