#include "common/predict/step_meter.h"

#include <catch2/catch.hpp>

using namespace cleave;

namespace {

const std::vector<LinkSpeed> kLink = {{1e8, 2e8, 4e-3}};
const std::vector<BodyDone> kBody = {{}};

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
  return {Phase::train, number, 0, {microBatches, 64}};
}

}  // namespace

TEST_CASE("a step's costs are means per micro-batch over the tensors since the previous step") {
  StepMeter meter;
  LinkTotals totals = later({}, 100);  // totals that include an evaluation
  meter.pass(totals);
  totals = later(totals, 4);
  const auto costs = meter.measure(step(1, 4), actions(0.4), kBody, totals, kLink);
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
  CHECK_FALSE(meter.measure(step(1, 4), actions(1), kBody, {}, kLink));
  const LinkTotals totals = later({}, 4);
  CHECK(meter.measure(step(2, 4), actions(1), kBody, totals, kLink));
  const auto costs = meter.measure(step(3, 4), actions(1), kBody, totals, {{}});
  REQUIRE(costs);
  CHECK(costs->flows.at(activationAt(0)).bytes == Approx(1000));
  CHECK_FALSE(costs->hasRates());
}

TEST_CASE("the mean excludes the first step and steps with fewer micro-batches") {
  StepMeter meter;
  LinkTotals totals;
  const auto measure = [&](std::uint32_t microBatches, double seconds) {
    totals = later(totals, microBatches);
    meter.measure(step(1, microBatches), actions(seconds), kBody, totals, kLink);
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

TEST_CASE("with two bodies, a tensor between them crosses two links and is encoded once") {
  const std::vector<Place> places = {{0, 1}, {1, 2}};
  StepMeter meter(places);
  LinkTotals totals;
  for (const Place& place : places) {
    for (const Flow flow : place.flows()) {
      LinkTotals link;
      const bool isInner = flow.cut == 1;
      link.flows[flow] = {2, 2000, isInner ? 1e-3 : 2e-3, isInner ? 3e-3 : 6e-3};
      totals += link;
    }
  }
  std::vector<BodyDone> bodies(2);
  bodies[0].forwardSeconds = 0.2;
  bodies[0].backwardSeconds = 0.4;
  bodies[1].forwardSeconds = 0.6;
  bodies[1].weightsSeconds = 0.8;
  const auto costs =
      meter.measure(step(1, 2), actions(0.4), bodies, totals, {{1e8, 2e8, 4e-3}, {3e8, 4e8, 6e-3}});
  REQUIRE(costs);
  CHECK(costs->bodies[0].forward == Approx(0.1));
  CHECK(costs->bodies[0].backward == Approx(0.2));
  CHECK(costs->bodies[1].forward == Approx(0.3));
  CHECK(costs->bodies[1].backward == Approx(0.4));
  CHECK(costs->bodies[1].weights == Approx(0.4));
  CHECK(costs->bodies[1].rateUp == 3e8);
  CHECK(costs->bodies[1].latency == Approx(3e-3));
  for (const auto& [flow, tensor] : costs->flows) {
    CAPTURE(flowName(flow));
    CHECK(tensor.bytes == Approx(1000));
    CHECK(tensor.encodeSeconds == Approx(1e-3));
    CHECK(tensor.decodeSeconds == Approx(3e-3));
  }
}

TEST_CASE("the costs of replicas are means over all of them, and their link is the fastest one") {
  StepMeter meter({{}}, {2});
  LinkTotals totals = later({}, 4);
  std::vector<BodyDone> bodies(1);
  bodies[0].forwardSeconds = 0.2;
  bodies[0].reduceSeconds = 0.5;
  bodies[0].sumSeconds = 0.3;
  const std::vector<LinkSpeed> links = {{1e8, 4e8, 4e-3}, {3e8, 2e8, 6e-3}};
  REQUIRE(meter.measure(step(1, 4), actions(0.4), bodies, totals, links));
  totals = later(totals, 4);
  REQUIRE(meter.measure(step(2, 4), actions(0.4), bodies, totals, links));
  bodies[0].sumSeconds = 0.1;
  totals = later(totals, 4);
  const auto costs = meter.measure(step(3, 4), actions(0.4), bodies, totals, links);
  REQUIRE(costs);
  REQUIRE(costs->bodies.size() == 1);
  CHECK(costs->body().replicas.count == 2);
  CHECK(costs->body().replicas.seconds == 0.1);
  CHECK(costs->body().forward == Approx(0.05));
  CHECK(costs->body().rateUp == 3e8);
  CHECK(costs->body().rateDown == 4e8);
  CHECK(costs->body().latency == Approx(2e-3));
  CHECK(meter.mean()->body().replicas.seconds == Approx(0.2));  // of steps 2 and 3
}

TEST_CASE("with a direct link, the second body reports the costs of the flows between two bodies") {
  const std::vector<Place> places = {{0, 1}, {1, 2}};
  StepMeter meter(places);
  LinkTotals totals;
  for (const Flow flow : {activationAt(0), gradientAt(0), activationAt(2), gradientAt(2)}) {
    totals.flows[flow] = {2, 2000, 2e-3, 6e-3};
  }
  std::vector<BodyDone> bodies(2);
  const std::vector<LinkSpeed> links = {{1e8, 2e8, 4e-3}, {3e8, 0, 6e-3}};
  CHECK_FALSE(meter.measure(step(1, 2), actions(0.4), bodies, totals, links));
  bodies[1].edge = EdgeReport{5e8, 1e-3, {3000, 1e-4, 2e-4}, {4000, 3e-4, 4e-4}};
  const auto costs = meter.measure(step(2, 2), actions(0.4), bodies, totals, links);
  REQUIRE(costs);
  REQUIRE(costs->edges.size() == 1);
  CHECK(costs->edges[0].rate == 5e8);
  CHECK(costs->edges[0].latency == Approx(5e-4));
  CHECK(costs->flows.at(activationAt(1)).bytes == 3000);
  CHECK(costs->flows.at(gradientAt(1)).decodeSeconds == 4e-4);
  CHECK_FALSE(costs->hasRates());
  // A step in which nothing was measured keeps the costs. Rates of directions that carry no tensors
  // may be unknown.
  bodies[1].edge = EdgeReport{5e8, 1e-3, {}, {}};
  const auto later =
      meter.measure(step(3, 2), actions(0.4), bodies, totals, {{1e8, 2e8, 4e-3}, {3e8, 1e8, 6e-3}});
  REQUIRE(later);
  CHECK(later->flows.at(activationAt(1)).bytes == 3000);
  CHECK(later->hasRates());
}
