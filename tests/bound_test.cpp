#include "common/predict/bound.h"

#include <catch2/catch.hpp>

using namespace cleave;

namespace {

// MobileNetV2 at batch 64: F1 6, T3 1, B1 10.9, F2 2, B2 4 ms; fp32 tensors of 12.8 MB at the first
// cut and 2 MB at the second.
StepCosts mobileNet(double rate, double latency) {
  StepCosts costs;
  costs.microBatches = 8;
  costs.headForward = 6e-3;
  costs.tailStep = 1e-3;
  costs.headBackward = 10.9e-3;
  costs.body().forward = 2e-3;
  costs.body().backward = 4e-3;
  costs.flows[activationAt(0)].bytes = costs.flows[gradientAt(0)].bytes = 12.845056e6;
  costs.flows[activationAt(1)].bytes = costs.flows[gradientAt(1)].bytes = 2.00704e6;
  costs.body().rateUp = costs.body().rateDown = rate;
  costs.body().latency = latency;
  return costs;
}

}  // namespace

TEST_CASE(
    "the bound is the busiest resource's work plus the work that must come before and after it") {
  const StepBound slow = stepBound(mobileNet(125e6, 0.1e-3));
  const double before = 6e-3;
  const double work = 8 * (12.845056e6 + 2.00704e6) / 125e6;
  const double after = 2 * 0.1e-3 + 4e-3 + 12.845056e6 / 125e6 + 10.9e-3;
  CHECK(slow.seconds == Approx(before + work + after).epsilon(1e-9));
  CHECK(slow.bottleneck == Bottleneck::uplink);
  const StepBound fast = stepBound(mobileNet(1250e6, 0.1e-3));
  CHECK(fast.seconds == Approx(0.1432).epsilon(0.002));
  CHECK(fast.bottleneck == Bottleneck::clientCompute);
}

TEST_CASE("with one micro-batch, nothing overlaps, and the bound is the sum of all its durations") {
  StepCosts costs = mobileNet(125e6, 10e-3);
  costs.microBatches = 1;
  for (auto& [flow, tensor] : costs.flows) {
    tensor.encodeSeconds = 1e-3;
    tensor.decodeSeconds = 2e-3;
  }
  costs.updateSeconds = 5e-3;
  const double wire = 2 * (12.845056e6 + 2.00704e6) / 125e6;
  CHECK(stepBound(costs).seconds ==
        Approx(23.9e-3 + wire + 4 * 10e-3 + 4 * 3e-3 + 5e-3).epsilon(1e-9));
}

TEST_CASE("each resource is named if it is the bottleneck") {
  const auto named = [](const StepCosts& costs) { return stepBound(costs).bottleneck; };
  StepCosts costs = mobileNet(1e12, 0);
  CHECK(named(costs) == Bottleneck::clientCompute);
  costs.body().backward = 30e-3;
  CHECK(named(costs) == Bottleneck::serverCompute);
  costs = mobileNet(1e12, 0.5);
  CHECK(named(costs) == Bottleneck::latency);
  costs = mobileNet(1e12, 0);
  costs.body().rateDown = 20e6;
  CHECK(named(costs) == Bottleneck::downlink);
  costs = mobileNet(1e12, 0);
  costs.flows[activationAt(0)].decodeSeconds = 0.1;
  CHECK(named(costs) == Bottleneck::codec);
  CHECK(bottleneckName(Bottleneck::serverCompute) == "server compute");
}

TEST_CASE("higher costs never lower the bound") {
  const StepCosts base = mobileNet(125e6, 1e-3);
  const double before = stepBound(base).seconds;
  for (std::size_t k = 0; k < kScheduledKinds; ++k) {
    StepCosts costs = base;
    costs.of(static_cast<ActionKind>(k)) *= 3;
    CHECK(stepBound(costs).seconds >= before);
  }
  for (const Flow flow : base.body().place.flows()) {
    StepCosts costs = base;
    costs.flows[flow].bytes *= 3;
    CHECK(stepBound(costs).seconds >= before);
    costs = base;
    costs.flows[flow].encodeSeconds = 1e-3;
    CHECK(stepBound(costs).seconds >= before);
  }
  StepCosts costs = base;
  costs.body().latency *= 10;
  CHECK(stepBound(costs).seconds > before);
}

TEST_CASE("with two servers, the slowest resource of either is the bottleneck") {
  StepCosts costs = mobileNet(1e12, 0);
  costs.bodies.push_back({{1, 2}, 1e-3, 1e-3, 1e12, 1e12, 0, 0});
  costs.flows[activationAt(2)].bytes = costs.flows[gradientAt(2)].bytes = 1e6;
  const double before = stepBound(costs).seconds;
  CHECK(stepBound(costs).bottleneck == Bottleneck::clientCompute);
  costs.bodies[1].forward = 50e-3;
  CHECK(stepBound(costs).bottleneck == Bottleneck::serverCompute);
  CHECK(stepBound(costs).body == 1);
  CHECK(stepBound(costs).seconds > before);
  costs.bodies[1].forward = 1e-3;
  costs.bodies[1].rateUp = 20e6;  // the flows activation/1 and gradient/2
  const StepBound slow = stepBound(costs);
  CHECK(slow.bottleneck == Bottleneck::uplink);
  CHECK(slow.body == 1);
  CHECK(slow.seconds > 8 * (2.00704e6 + 1e6) / 20e6);
}
