#include "common/predict/bound.h"

#include <catch2/catch.hpp>

using namespace cleave;

namespace {

// MobileNetV2 at batch 64: F1 6, T3 1, B1 10.9, F2 2, B2 4 ms; fp32 tensors of 12.8 and 2 MB.
StepCosts mobileNet(double rate, double latency) {
  StepCosts costs;
  costs.microBatches = 8;
  costs.seconds[indexOf(ActionKind::headForward)] = 6e-3;
  costs.seconds[indexOf(ActionKind::tailStep)] = 1e-3;
  costs.seconds[indexOf(ActionKind::headBackward)] = 10.9e-3;
  costs.seconds[indexOf(ActionKind::bodyForward)] = 2e-3;
  costs.seconds[indexOf(ActionKind::bodyBackward)] = 4e-3;
  costs.bytes[indexOf(Flow::activation0)] = costs.bytes[indexOf(Flow::gradient0)] = 12.845056e6;
  costs.bytes[indexOf(Flow::activation1)] = costs.bytes[indexOf(Flow::gradient1)] = 2.00704e6;
  costs.rateUp = costs.rateDown = rate;
  costs.latency = latency;
  return costs;
}

}  // namespace

TEST_CASE("the bound is the busiest resource's work and what must go before and after it") {
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

TEST_CASE("one micro-batch has its path to go, and nothing overlaps") {
  StepCosts costs = mobileNet(125e6, 10e-3);
  costs.microBatches = 1;
  costs.encodeSeconds.fill(1e-3);
  costs.decodeSeconds.fill(2e-3);
  costs.updateSeconds = 5e-3;
  const double wire = 2 * (12.845056e6 + 2.00704e6) / 125e6;
  CHECK(stepBound(costs).seconds ==
        Approx(23.9e-3 + wire + 4 * 10e-3 + 4 * 3e-3 + 5e-3).epsilon(1e-9));
}

TEST_CASE("each resource is named where it rules") {
  const auto named = [](const StepCosts& costs) { return stepBound(costs).bottleneck; };
  StepCosts costs = mobileNet(1e12, 0);
  CHECK(named(costs) == Bottleneck::clientCompute);
  costs.seconds[indexOf(ActionKind::bodyBackward)] = 30e-3;
  CHECK(named(costs) == Bottleneck::serverCompute);
  costs = mobileNet(1e12, 0.5);
  CHECK(named(costs) == Bottleneck::latency);
  costs = mobileNet(1e12, 0);
  costs.rateDown = 20e6;
  CHECK(named(costs) == Bottleneck::downlink);
  costs = mobileNet(1e12, 0);
  costs.decodeSeconds[indexOf(Flow::activation0)] = 0.1;
  CHECK(named(costs) == Bottleneck::codec);
  CHECK(bottleneckName(Bottleneck::serverCompute) == "server compute");
}

TEST_CASE("more of anything never lowers the bound") {
  const StepCosts base = mobileNet(125e6, 1e-3);
  const double before = stepBound(base).seconds;
  for (std::size_t k = 0; k < kScheduledKinds; ++k) {
    StepCosts costs = base;
    costs.seconds[k] *= 3;
    CHECK(stepBound(costs).seconds >= before);
  }
  for (std::size_t f = 0; f < kTensorFlows; ++f) {
    StepCosts costs = base;
    costs.bytes[f] *= 3;
    CHECK(stepBound(costs).seconds >= before);
    costs = base;
    costs.encodeSeconds[f] = 1e-3;
    CHECK(stepBound(costs).seconds >= before);
  }
  StepCosts costs = base;
  costs.latency *= 10;
  CHECK(stepBound(costs).seconds > before);
}
