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

TEST_CASE("if steps overlap, the bound is the busiest resource's work, or the path's share") {
  StepCosts costs = mobileNet(125e6, 50e-3);
  costs.updateSeconds = 5e-3;
  const double work = 8 * (12.845056e6 + 2.00704e6) / 125e6;
  const StepBound busy = steadyStepBound(costs, 1);
  CHECK(busy.seconds == Approx(work).epsilon(1e-9));
  CHECK(busy.bottleneck == Bottleneck::uplink);
  CHECK(busy.seconds < stepBound(costs).seconds);
  costs.microBatches = 1;
  const double path = stepBound(costs).seconds;
  CHECK(steadyStepBound(costs, 0).seconds == Approx(path));
  CHECK(steadyStepBound(costs, 1).seconds == Approx(path / 2));
  // On a fast link, a client that computes for 20.9 ms is busy, and updates once per step.
  costs = mobileNet(1e12, 0);
  costs.updateSeconds = 5e-3;
  const StepBound client = steadyStepBound(costs, 16);
  CHECK(client.bottleneck == Bottleneck::clientCompute);
  const double computing = costs.headForward + costs.tailStep + costs.headBackward;
  CHECK(client.seconds == Approx(8 * computing + 5e-3));
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

namespace {

// Two servers on a link of 100 MB/s in each direction. Every action takes 1 ms, and every tensor
// has 1 MB: 10 ms on the link.
StepCosts twoBodies() {
  StepCosts costs;
  costs.microBatches = 4;
  costs.headForward = costs.tailStep = costs.headBackward = 1e-3;
  costs.bodies = {{{0, 1}, 1e-3, 1e-3, 1e8, 1e8, 2e-3, 0}, {{1, 2}, 1e-3, 1e-3, 1e8, 1e8, 3e-3, 0}};
  for (const BodyCosts& body : costs.bodies) {
    for (const Flow flow : body.place.flows()) costs.flows[flow] = {1e6, 0, 0};
  }
  return costs;
}

}  // namespace

TEST_CASE("links that share a bandwidth carry the tensors of all bodies one after another") {
  StepCosts costs = twoBodies();
  // Each direction carries four tensors per micro-batch: activation/0 and /1, gradient/2 and /1 go
  // up. The first one leaves after HeadForward; the last one is followed by its latency, the first
  // body's backward, gradient/0 and HeadBackward.
  costs.sharesLink = true;
  const double up = 1e-3 + 4 * 4 * 10e-3 + 2e-3 + 1e-3 + 12e-3 + 1e-3;
  const StepBound shared = stepBound(costs);
  CHECK(shared.seconds == Approx(up).epsilon(1e-9));
  CHECK(shared.bottleneck == Bottleneck::uplink);
  CHECK(shared.body == 0);

  // Without sharing, each link carries two of them: the path of one micro-batch is longer.
  costs.sharesLink = false;
  const double path = 7e-3 + 8 * 10e-3 + 4 * (2e-3 + 3e-3);
  CHECK(stepBound(costs).seconds >= path);
  CHECK(stepBound(costs).seconds < up);
  costs.microBatches = 1;
  CHECK(stepBound(costs).seconds == Approx(path).epsilon(1e-9));
}

TEST_CASE("a server has its share of the work of replicas, a shared link has all of it") {
  StepCosts costs = mobileNet(125e6, 0.1e-3);
  costs.body().forward = 100e-3;
  costs.body().backward = 200e-3;
  costs.body().replicas = {3, 0, 50e-3};
  // The first tensor takes 6 ms to compute, 12.845056 MB / 125 MB/s to cross, and the latency; a
  // replica computes 8 / 3 micro-batches on average; then come the sum and BodyDone.
  const double across = 12.845056e6 / 125e6;
  const StepBound bound = stepBound(costs);
  CHECK(bound.bottleneck == Bottleneck::serverCompute);
  CHECK(bound.seconds ==
        Approx(6e-3 + across + 0.1e-3 + 8 * 100e-3 + across + 0.1e-3 + 10.9e-3).epsilon(1e-9));
  costs.body().replicas.seconds = 500e-3;
  CHECK(stepBound(costs).seconds ==
        Approx(6e-3 + across + 0.1e-3 + 8 * 100e-3 + 500e-3 + 0.1e-3).epsilon(1e-9));
  CHECK(steadyStepBound(costs, 16).seconds == Approx(8 * 100e-3).epsilon(1e-9));

  costs.body().forward = costs.body().backward = 1e-6;
  const double separate = steadyStepBound(costs, 16).seconds;
  costs.sharesLink = true;
  const double work = 8 * (12.845056e6 + 2.00704e6) / 125e6;
  CHECK(steadyStepBound(costs, 16).seconds == Approx(work).epsilon(1e-9));
  CHECK(separate == Approx(work / 3).epsilon(1e-9));
}

TEST_CASE("if the body is frozen, the step does not wait for BodyDone") {
  StepCosts costs = mobileNet(125e6, 0.1e-3);
  costs.microBatches = 1;
  costs.body().place.first.front().hasGradient = false;
  costs.body().place.last.front().hasGradient = false;
  CHECK(stepBound(costs).seconds ==
        Approx(6e-3 + 2e-3 + 1e-3 + (12.845056e6 + 2.00704e6) / 125e6 + 2 * 0.1e-3).epsilon(1e-9));
}

TEST_CASE("the sum of replicas sends and receives most of the bytes twice") {
  CHECK(reduceSeconds({1, 1e6, 0}, 1e6, 1e-3) == 0);
  CHECK(reduceSeconds({2, 1e6, 0}, 1e6, 1e-3) == Approx(1 + 4e-3));
  CHECK(reduceSeconds({4, 1e6, 0}, 1e6, 1e-3) == Approx(1.5 + 4e-3));
}

TEST_CASE("direct links take the tensors between two bodies off the client's link") {
  StepCosts costs = twoBodies();
  costs.sharesLink = true;
  costs.edges = {{4e8, 0.5e-3}};
  costs.microBatches = 1;
  // activation/0, /2, gradient/2, /0 cross the client's link, activation/1 and gradient/1 do not.
  CHECK(stepBound(costs).seconds ==
        Approx(7e-3 + 4 * 10e-3 + 2 * (2e-3 + 3e-3) + 2 * (2.5e-3 + 0.5e-3)).epsilon(1e-9));
  costs.microBatches = 4;
  // In between, the uplink waits until activation/0 has come back as gradient/2.
  const double idle = 2e-3 + 1e-3 + 3e-3 + 1e-3 + 13e-3 + 1e-3 - 3 * 10e-3;
  REQUIRE(idle < 0);
  const double up = 1e-3 + 4 * 2 * 10e-3 + 3e-3 + 1e-3 + 3e-3 + 1e-3 + 12e-3 + 1e-3;
  CHECK(stepBound(costs).seconds == Approx(up).epsilon(1e-9));

  costs.edges = {{2e6, 0.5e-3}};
  costs.flows[activationAt(1)].bytes = 1.5e6;  // 0.75 s
  const StepBound slow = stepBound(costs);
  CHECK(slow.bottleneck == Bottleneck::uplink);
  CHECK(slow.body == 1);
  CHECK(slow.seconds > 4 * 0.75);
}
