#include "common/predict/step_meter.h"

#include <catch2/catch.hpp>

using namespace cleave;

namespace {

const LinkSpeed kLink{1e8, 2e8, 4e-3};

ActionSeconds actions(double headForward) {
  ActionSeconds seconds{};
  seconds[indexOf(ActionKind::headForward)] = headForward;
  seconds[indexOf(ActionKind::decide)] = 1e-3;
  seconds[indexOf(ActionKind::update)] = 2e-3;
  return seconds;
}

// Adds `tensors` tensors of 1000 bytes to each flow.
LinkTotals later(LinkTotals totals, std::uint64_t tensors) {
  for (const Flow each : Place{}.flows()) {
    LinkTotals::FlowTotals& flow = totals.flows[each];
    flow.tensors += tensors;
    flow.wireBytes += 1000 * tensors;
    flow.encodeSeconds += 1e-3 * static_cast<double>(tensors);
    flow.decodeSeconds += 2e-3 * static_cast<double>(tensors);
  }
  return totals;
}

MicroBatch step(std::uint64_t number, std::uint32_t microBatches) {
  return {Phase::train, number, 0, microBatches, 64};
}

}  // namespace

TEST_CASE("a step's costs are means per micro-batch over the tensors since the previous step") {
  StepMeter meter;
  LinkTotals totals = later({}, 100);  // totals that include an evaluation
  meter.pass(totals);
  totals = later(totals, 4);
  const auto costs = meter.measure(step(1, 4), actions(0.4), totals, kLink);
  REQUIRE(costs);
  CHECK(costs->microBatches == 4);
  CHECK(costs->of(ActionKind::headForward) == Approx(0.1));
  CHECK(costs->updateSeconds == Approx(3e-3));
  CHECK(costs->body().latency == Approx(2e-3));
  CHECK(costs->body().rateUp == 1e8);
  CHECK(costs->body().rateDown == 2e8);
  for (const auto& [flow, tensor] : costs->flows) {
    CHECK(tensor.bytes == Approx(1000));
    CHECK(tensor.encodeSeconds == Approx(1e-3));
    CHECK(tensor.decodeSeconds == Approx(2e-3));
  }
}

TEST_CASE("a flow without new records keeps its previous costs, which are initially zero") {
  StepMeter meter;
  CHECK_FALSE(meter.measure(step(1, 4), actions(1), {}, kLink));
  const LinkTotals totals = later({}, 4);
  CHECK(meter.measure(step(2, 4), actions(1), totals, kLink));
  const auto costs = meter.measure(step(3, 4), actions(1), totals, {});
  REQUIRE(costs);
  CHECK(costs->flows.at(activationAt(0)).bytes == Approx(1000));
  CHECK_FALSE(costs->hasRates());
}

TEST_CASE("the mean excludes the first step and steps with fewer micro-batches") {
  StepMeter meter;
  LinkTotals totals;
  const auto measure = [&](std::uint32_t microBatches, double seconds) {
    totals = later(totals, microBatches);
    meter.measure(step(1, microBatches), actions(seconds), totals, kLink);
  };
  measure(4, 100);
  CHECK_FALSE(meter.mean());
  measure(4, 0.4);
  measure(2, 50);
  measure(4, 0.8);
  REQUIRE(meter.mean());
  CHECK(meter.mean()->microBatches == 4);
  CHECK(meter.mean()->of(ActionKind::headForward) == Approx(0.15));
  CHECK(meter.mean()->flows.at(gradientAt(1)).bytes == Approx(1000));
}
