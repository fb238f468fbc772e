#include "common/predict/step_meter.h"

#include <algorithm>
#include <utility>

namespace cleave {
namespace {

constexpr ActionKind kClientKinds[] = {ActionKind::headForward, ActionKind::tailStep,
                                       ActionKind::headBackward};
constexpr ActionKind kBodyKinds[] = {ActionKind::bodyForward, ActionKind::bodyBackward,
                                     ActionKind::bodyWeights};

// Calls `function` with each of the seconds per micro-batch, of `costs` and of `others`.
template <typename Function>
void eachOf(StepCosts& costs, const StepCosts& others, Function function) {
  for (const ActionKind kind : kClientKinds) function(costs.of(kind), others.of(kind));
  for (std::size_t b = 0; b < costs.bodies.size(); ++b) {
    for (const ActionKind kind : kBodyKinds) function(costs.of(kind, b), others.of(kind, b));
  }
}

}  // namespace

// All tensors of a cut count as one flow.
StepMeter::StepMeter(const std::vector<Place>& places, const std::vector<std::uint32_t>& replicas) {
  last_.bodies.clear();
  for (const Place& place : places) {
    BodyCosts& body = last_.bodies.emplace_back();
    body.place = place;
    body.place.first.resize(1);
    body.place.last.resize(1);
    if (!replicas.empty()) body.replicas.count = replicas.at(last_.bodies.size() - 1);
  }
}

std::optional<StepCosts> StepMeter::measure(const MicroBatch& at, const ActionSeconds& client,
                                            const std::vector<BodyDone>& bodies,
                                            const LinkTotals& totals,
                                            const std::vector<LinkSpeed>& links) {
  StepCosts costs = last_;
  costs.microBatches = at.batch.count;
  for (const ActionKind kind : kClientKinds) {
    costs.of(kind) = client[indexOf(kind)] / at.batch.count;
  }
  costs.updateSeconds = client[indexOf(ActionKind::decide)] + client[indexOf(ActionKind::update)];
  for (std::size_t b = 1; b < costs.bodies.size(); ++b) {
    if (bodies[b].edge) setEdge(costs, b, *bodies[b].edge);
  }
  bool known = true;
  std::size_t server = 0;
  for (std::size_t b = 0; b < costs.bodies.size(); ++b) {
    BodyCosts& body = costs.bodies[b];
    body.forward = bodies[b].forwardSeconds / at.batch.count;
    body.weights = bodies[b].weightsSeconds / at.batch.count;
    body.backward = bodies[b].backwardSeconds / at.batch.count + body.weights;
    body.replicas.seconds = bodies[b].sumSeconds;
    setLink(body, std::span(links).subspan(server, body.replicas.count));
    server += body.replicas.count;
    for (const Flow flow : body.place.flows()) {
      FlowCosts& tensor = costs.flows[flow];
      // The client has no transfers of flows that cross an edge.
      setFlow(tensor, flow, totals);
      known = known && tensor.bytes > 0;
    }
  }
  before_ = totals;
  last_ = costs;
  if (!known) return std::nullopt;
  if (warm_) add(costs);
  warm_ = true;
  return costs;
}

// Of replicas, the fastest link counts, so that no step is shorter than the bound.
void StepMeter::setLink(BodyCosts& body, std::span<const LinkSpeed> links) {
  body.latency = links.front().roundTripSeconds / 2;
  body.rateUp = body.rateDown = 0;
  for (const LinkSpeed& link : links) {
    body.latency = std::min(body.latency, link.roundTripSeconds / 2);
    body.rateUp = std::max(body.rateUp, link.rateUp);
    body.rateDown = std::max(body.rateDown, link.rateDown);
  }
}

// The edge before body b.
void StepMeter::setEdge(StepCosts& costs, std::size_t b, const EdgeReport& report) {
  costs.edges.resize(costs.bodies.size() - 1);
  costs.edges[b - 1] = {report.rate, report.roundTripSeconds / 2};
  const int cut = costs.bodies[b].place.firstCut;
  const auto set = [&](Flow flow, const EdgeReport::OfFlow& mean) {
    if (mean.bytes > 0) costs.flows[flow] = {mean.bytes, mean.encodeSeconds, mean.decodeSeconds};
  };
  set(activationAt(cut), report.activation);
  set(gradientAt(cut), report.gradient);
}

// Transfers are recorded with a delay: a step may see those of the previous step, or none. If there
// are none, `costs` stays unchanged.
void StepMeter::setFlow(FlowCosts& costs, Flow flow, const LinkTotals& totals) const {
  FlowCosts sum;
  double tensors = 0;
  for (const auto& [each, after] : totals.flows) {
    if (each.kind != flow.kind || each.cut != flow.cut) continue;
    const LinkTotals::FlowTotals before = before_.flows.get(each);
    sum.bytes += static_cast<double>(after.wireBytes - before.wireBytes);
    sum.encodeSeconds += after.encodeSeconds - before.encodeSeconds;
    sum.decodeSeconds += after.decodeSeconds - before.decodeSeconds;
    if (each == flow) tensors = static_cast<double>(after.tensors - before.tensors);
  }
  // A tensor between two bodies crosses two links, but is encoded and decoded once.
  const auto crossings = static_cast<double>(
      std::count_if(last_.bodies.begin(), last_.bodies.end(),
                    [&](const BodyCosts& body) { return body.place.contains(flow); }));
  if (tensors > 0) {
    costs = {sum.bytes / tensors, crossings * sum.encodeSeconds / tensors,
             crossings * sum.decodeSeconds / tensors};
  }
}

void StepMeter::add(const StepCosts& costs) {
  if (steps_ > 0 && costs.microBatches < sum_.microBatches) return;
  if (steps_ > 0 && costs.microBatches > sum_.microBatches) steps_ = 0;
  if (steps_ == 0) {
    sum_ = costs;
  } else {
    const StepCosts before = std::exchange(sum_, costs);
    eachOf(sum_, before, [](double& sum, double more) { sum += more; });
    for (auto& [flow, tensor] : sum_.flows) {
      const FlowCosts& others = before.flows.at(flow);
      tensor.bytes += others.bytes;
      tensor.encodeSeconds += others.encodeSeconds;
      tensor.decodeSeconds += others.decodeSeconds;
    }
    sum_.updateSeconds += before.updateSeconds;
    for (std::size_t b = 0; b < sum_.bodies.size(); ++b) {
      sum_.bodies[b].replicas.seconds += before.bodies[b].replicas.seconds;
    }
  }
  ++steps_;
}

std::optional<StepCosts> StepMeter::mean() const {
  if (steps_ == 0) return std::nullopt;
  StepCosts mean = sum_;
  const auto steps = static_cast<double>(steps_);
  eachOf(mean, sum_, [&](double& value, double sum) { value = sum / steps; });
  for (auto& [flow, tensor] : mean.flows) {
    tensor.bytes /= steps;
    tensor.encodeSeconds /= steps;
    tensor.decodeSeconds /= steps;
  }
  mean.updateSeconds /= steps;
  for (BodyCosts& body : mean.bodies) body.replicas.seconds /= steps;
  return mean;
}

}  // namespace cleave
