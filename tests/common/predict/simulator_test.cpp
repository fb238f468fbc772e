#include "common/predict/simulator.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "common/core/random.h"
#include "tests/support/models/virtual_run.h"

using namespace cleave;

namespace {

double simulated(const StepCosts& costs, std::string_view schedule) {
  const Schedule& row = findSchedule(schedule);
  return simulateStep(costs, policyOf(row, row.defaultInFlight(costs.microBatches))).seconds;
}

// Draws seconds and bytes at random over three orders of magnitude.
StepCosts randomCosts(std::uint64_t seed, int bodies = 1) {
  const RandomKey key = randomKey(seed, "simulator-test");
  std::uint64_t draw = 0;
  const auto uniform = [&] { return static_cast<double>(randomBits(key, draw++) >> 11) * 0x1p-53; };
  const auto some = [&](double min) { return min * std::pow(1000.0, uniform()); };
  StepCosts costs;
  costs.microBatches = 1 + static_cast<std::uint32_t>(uniform() * 12);
  for (double* seconds : {&costs.headForward, &costs.tailStep, &costs.headBackward}) {
    *seconds = some(1e-4);
  }
  const bool coded = uniform() < 0.5;
  costs.bodies.clear();
  const int frozen = seed % 3 == 0 ? 1 + static_cast<int>(seed / 3 % (bodies + 1)) : 0;
  for (int b = 0; b < bodies; ++b) {
    BodyCosts& body = costs.bodies.emplace_back();
    body.place = {b, b + 1};
    // In some cases the first parts are frozen, so no gradient crosses the first cuts.
    body.place.first.front().hasGradient = b >= frozen;
    body.place.last.front().hasGradient = b + 1 >= frozen;
    body.forward = some(1e-4);
    body.backward = some(1e-4);
    body.weights = body.backward * uniform();
    body.rateUp = some(1e7);
    body.rateDown = some(1e7);
    body.latency = some(1e-4);
    for (const Flow flow : body.place.flows()) {
      costs.flows[flow] = {some(1e4), coded ? some(1e-5) : 0, coded ? some(1e-5) : 0};
    }
  }
  costs.updateSeconds = some(1e-4);
  return costs;
}

// The same costs with each kind of links between the client and the bodies, and between the bodies,
// with replicas, and with the members of a cohort.
std::vector<StepCosts> withAllLinks(const StepCosts& costs, std::uint64_t seed) {
  std::vector<StepCosts> all;
  for (const bool shares : {false, true}) {
    for (const bool direct : {false, true}) {
      StepCosts& linked = all.emplace_back(costs);
      linked.sharesLink = shares;
      for (BodyCosts& body : linked.bodies) {
        if (!shares) break;
        body.rateUp = costs.body().rateUp;
        body.rateDown = costs.body().rateDown;
      }
      // The other bodies' rates and latencies serve as random ones.
      const StepCosts others = randomCosts(seed + 1000, static_cast<int>(costs.bodies.size()));
      for (std::size_t e = 0; direct && e + 1 < costs.bodies.size(); ++e) {
        linked.edges.push_back({others.bodies[e].rateUp, others.bodies[e].latency});
      }
    }
    if (costs.microBatches == 1) continue;
    StepCosts& replicated = all.emplace_back(costs);
    replicated.sharesLink = shares;
    for (std::size_t b = 0; b < costs.bodies.size(); ++b) {
      BodyCosts& body = replicated.bodies[b];
      if (shares) {
        body.rateUp = costs.body().rateUp;
        body.rateDown = costs.body().rateDown;
      }
      if (b == 1) continue;  // this one has a single server
      body.replicas.count = 2 + static_cast<std::uint32_t>((seed + b) % (costs.microBatches - 1));
      body.replicas.seconds = randomCosts(seed + 2000 + b).updateSeconds;
    }
  }
  for (std::size_t n = 0, alone = all.size(); n < alone; ++n) {
    if (!all[n].edges.empty()) continue;
    StepCosts& together = all.emplace_back(all[n]);
    together.members = 2 + static_cast<std::uint32_t>((seed + n) % 4);
    together.memberBytes = randomCosts(seed + 3000 + n).flows.begin()->second.bytes;
    together.isByMember = seed % 5 != 0;
  }
  return all;
}

}  // namespace

TEST_CASE("a step of one micro-batch takes as long as the bound") {
  for (const int bodies : {1, 2, 4}) {
    StepCosts costs = randomCosts(3, bodies);
    costs.microBatches = 1;
    for (const StepCosts& linked : withAllLinks(costs, 3)) {
      if (linked.members > 1) continue;
      for (const Schedule& schedule : scheduleTable()) {
        const double bound = stepBound(linked, schedule.splitsBackward).seconds;
        CHECK(simulated(linked, schedule.name) == Approx(bound).epsilon(1e-9));
      }
    }
  }
}

TEST_CASE("no order of actions is faster than the bound") {
  double nearest = 1e9;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const StepCosts unlinked = randomCosts(seed, 1 + static_cast<int>(seed % 4));
    for (const StepCosts& costs : withAllLinks(unlinked, seed)) {
      const bool areMixed = costs.bodies.size() > 1 && costs.maxReplicas() > 1;
      for (const Schedule& schedule : scheduleTable()) {
        if (areMixed && schedule.name == "1f1b") continue;  // refused by checkReplicas()
        const double bound = stepBound(costs, schedule.splitsBackward).seconds;
        INFO("seed " << seed << ", " << schedule.name << ", shared " << costs.sharesLink
                     << ", edges " << costs.edges.size() << ", replicas " << costs.maxReplicas()
                     << ", members " << costs.members);
        const double seconds = simulated(costs, schedule.name);
        REQUIRE(seconds >= bound * (1 - 1e-9));
        nearest = std::min(nearest, seconds / bound);
      }
    }
  }
  CHECK(nearest < 1.001);  // the bound is reached
}

TEST_CASE("members share a step's micro-batches, but not their links") {
  StepCosts costs;
  costs.microBatches = 12;
  costs.headForward = costs.tailStep = costs.headBackward = 1e-6;
  costs.bodies = {{{0, 1}, 1e-6, 1e-6, 1e6, 1e6, 0}};
  for (const Flow flow : costs.body().place.flows()) costs.flows[flow] = {1e6, 0, 0};
  // Each direction carries two tensors of a second per micro-batch.
  CHECK(simulated(costs, "priority") == Approx(25).epsilon(0.01));
  costs.members = 4;
  CHECK(simulated(costs, "priority") == Approx(8).epsilon(0.01));
  costs.memberBytes = 5e5;  // up, and the sum down
  CHECK(simulated(costs, "priority") == Approx(9).epsilon(0.01));
  const StepBound bound = stepBound(costs);
  CHECK((bound.bottleneck == Bottleneck::uplink || bound.bottleneck == Bottleneck::downlink));
  // The server computes for all.
  costs.body().forward = 2;
  CHECK(simulated(costs, "priority") == Approx(12 * 2 + 4).epsilon(0.05));
}

TEST_CASE("members that are computed in the order of the batch wait for each other") {
  StepCosts costs;
  costs.microBatches = 8;
  costs.members = 4;
  costs.headForward = costs.tailStep = costs.headBackward = 1;
  costs.bodies = {{{0, 1}, 0.1, 0.1, 1e9, 1e9, 0}};
  for (const Flow flow : costs.body().place.flows()) costs.flows[flow] = {1, 0, 0};
  const double byMember = simulated(costs, "priority");
  costs.isByMember = false;
  CHECK(simulated(costs, "priority") > 1.05 * byMember);
}

TEST_CASE("the search result is at least the bound and no slower than any schedule") {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    StepCosts costs = randomCosts(seed, 1 + static_cast<int>(seed % 2));
    costs.microBatches = std::min(costs.microBatches, 4u);
    const double best = bestStepSeconds(costs, 50);
    CHECK(best >= stepBound(costs, /*splitsBackward=*/true).seconds * (1 - 1e-9));
    CHECK(best <= simulated(costs, "priority") * (1 + 1e-9));
    CHECK(best <= simulated(costs, "zb") * (1 + 1e-9));
    CHECK(best == bestStepSeconds(costs, 50));
  }
}

TEST_CASE(
    "if the client is the bottleneck, it has no pauses between actions, and a fast link idles") {
  StepCosts costs;
  costs.microBatches = 8;
  costs.headForward = 10e-3;
  costs.tailStep = 2e-3;
  costs.headBackward = 20e-3;
  costs.bodies = {{{}, 1e-3, 1e-3, 1e9, 1e9, 1e-6, 0}};
  costs.flows = FlowMap<FlowCosts>(costs.body().place.flows(), {1e3, 0, 0});
  const double work = 8 * 32e-3;
  CHECK(simulated(costs, "priority") == Approx(work).epsilon(0.02));
}

TEST_CASE("a split backward hides the last gradient's way to the client, but not BodyDone's") {
  StepCosts costs;
  costs.microBatches = 4;
  costs.headForward = costs.tailStep = costs.headBackward = 1e-3;
  // The server is the bottleneck, so the last gradient/0 leaves 4 x 10 ms earlier. But BodyDone
  // leaves after the last BodyWeights, so only the client's HeadBackward is hidden.
  costs.bodies = {{{}, 10e-3, 20e-3, 1e9, 1e9, 14e-3, 0, 10e-3}};
  costs.flows = FlowMap<FlowCosts>(costs.body().place.flows(), {1, 0, 0});
  CHECK(simulated(costs, "priority") - simulated(costs, "zb") == Approx(1e-3).margin(1e-6));
}

TEST_CASE("an urgent tensor overtakes all segments except those already chosen") {
  // gradient/1 waits for at most one and a half segments and for the link's own queue.
  StepCosts costs;
  costs.microBatches = 2;
  costs.headForward = costs.tailStep = costs.headBackward = 1e-3;
  const double segment = 65536;
  const double rate = 12.5e6;  // 100 Mbit/s: segments of 5.2 ms each
  const double queueBytes = GENERATE_COPY(0.0, 3 * segment);
  costs.bodies = {{{}, 1e-3, 1e-3, rate, rate, 0.1e-3, queueBytes}};
  costs.flows = FlowMap<FlowCosts>(costs.body().place.flows(), {1e3, 0, 0});
  costs.flows[activationAt(0)].bytes = 10e6;
  costs.flows[gradientAt(1)].bytes = 1e5;
  const SimulatedStep step =
      simulateStep(costs, policyOf(findSchedule("priority"), 2), /*withTimeline=*/true);
  double queued = 0;
  double across = 0;
  for (const Span& span : step.timeline) {
    if (span.what == "TailStep 0") queued = span.end;
    if (span.what == "gradient/1 0") across = span.end;
  }
  REQUIRE(queued > 0.8);
  const double waited = (across - queued) * rate - 1e5;  // bytes
  CHECK(waited <= queueBytes + 1.5 * segment + 1);
  CHECK(waited > queueBytes);
}

TEST_CASE("the client passes a tensor on between two of its actions") {
  // activation/1 of the first micro-batch arrives while the client computes HeadForward of the
  // second one, and leaves when that ends.
  StepCosts costs;
  costs.microBatches = 2;
  costs.headForward = 100e-3;
  costs.tailStep = costs.headBackward = 1e-3;
  costs.bodies = {{{0, 1}, 1e-3, 1e-3, 1e9, 1e9, 0, 0}, {{1, 2}, 1e-3, 1e-3, 1e9, 1e9, 0, 0}};
  for (const BodyCosts& body : costs.bodies) {
    for (const Flow flow : body.place.flows()) costs.flows[flow] = {1e6, 0, 0};
  }
  const auto beginOf = [&](const std::string& what) {
    const SimulatedStep step =
        simulateStep(costs, policyOf(findSchedule("priority"), 2), /*withTimeline=*/true);
    for (const Span& span : step.timeline) {
      if (span.what == what && span.server == 1) return span.begin;
    }
    return -1.0;
  };
  CHECK(beginOf("activation/1 0") == Approx(200e-3));
  costs.edges = {{1e9, 0}};
  CHECK(beginOf("activation/1 0") == Approx(100e-3 + 1e-3 + 1e-3));
}

TEST_CASE("tensors on links that share a bandwidth take turns") {
  // activation/0 and, from the second body, gradient/2 and gradient/1 use the same bandwidth.
  StepCosts costs;
  costs.microBatches = 8;
  costs.headForward = costs.tailStep = costs.headBackward = 1e-3;
  costs.bodies = {{{0, 1}, 1e-3, 1e-3, 1e8, 1e8, 0, 0}, {{1, 2}, 1e-3, 1e-3, 1e8, 1e8, 0, 0}};
  for (const BodyCosts& body : costs.bodies) {
    for (const Flow flow : body.place.flows()) costs.flows[flow] = {10e6, 0, 0};
  }
  const double separate = simulated(costs, "priority");
  costs.sharesLink = true;
  const double shared = simulated(costs, "priority");
  // Four tensors of 0.1 s per micro-batch and direction instead of two, plus the path's ends.
  CHECK(shared > 8 * 4 * 0.1);
  CHECK(shared < 8 * 4 * 0.1 + 0.5);
  CHECK(separate > 8 * 2 * 0.1);
  CHECK(separate < shared / 1.3);
  costs.edges = {{1e9, 0}};
  const double direct = simulated(costs, "priority");
  CHECK(direct > 8 * 2 * 0.1);
  CHECK(direct < shared / 1.5);
}

TEST_CASE("the timeline has every action once, and actions in the same lane do not overlap") {
  const bool direct = GENERATE(false, true);
  StepCosts costs = randomCosts(8, 3);
  if (direct) costs.edges = {{1e8, 1e-3}, {1e8, 1e-3}};
  const SimulatedStep step =
      simulateStep(costs, policyOf(findSchedule("1f1b"), 1 + costs.microBatches / 2),
                   /*withTimeline=*/true);
  std::map<std::pair<Span::Lane, std::size_t>, double> free;
  std::map<std::string, int> count;
  for (const Span& span : step.timeline) {
    double& freeAt = free[{span.lane, span.server}];
    CHECK(span.begin >= freeAt - 1e-12);
    freeAt = span.end;
    ++count[span.what];
  }
  for (std::uint32_t i = 0; i < costs.microBatches; ++i) {
    for (const char* kind : {"HeadForward ", "TailStep ", "HeadBackward "}) {
      CHECK(count[kind + std::to_string(i)] == 1);
    }
    for (const char* kind : {"BodyForward ", "BodyBackward "}) {
      CHECK(count[kind + std::to_string(i)] == 3);
    }
  }
}

TEST_CASE("replicas share the micro-batches, and add their gradients after the last one") {
  StepCosts costs;
  costs.microBatches = 5;
  costs.headForward = costs.tailStep = costs.headBackward = 1e-6;
  costs.bodies = {{{}, 10e-3, 20e-3, 1e12, 1e12, 1e-6, 0}};
  costs.flows = FlowMap<FlowCosts>(costs.body().place.flows(), {1, 0, 0});
  costs.body().replicas = {2, 0, 7e-3};
  const SimulatedStep step =
      simulateStep(costs, policyOf(findSchedule("priority"), 5), /*withTimeline=*/true);
  for (const Span& span : step.timeline) {
    if (span.lane != Span::Lane::server) continue;
    CHECK(span.server == static_cast<std::size_t>(span.what.back() - '0') % 2);
  }
  // Replica 0 computes the micro-batches 0, 2 and 4.
  CHECK(step.seconds == Approx(3 * 30e-3 + 7e-3).epsilon(1e-3));
}

TEST_CASE("a policy that selects nothing is an error, not an endless loop") {
  const Policy never{[](const ReadyKinds&, const StageState&) { return std::nullopt; },
                     [](Flow, std::uint32_t, const Place&) { return 0; }, 1};
  CHECK_THROWS_AS(simulateStep(randomCosts(1), never), std::logic_error);
}

TEST_CASE("steps of replicas, and steps that overlap, take as long as those of the engines") {
  for (const std::string schedule : {"priority", "1f1b"}) {
    for (const std::uint32_t staleness : {0, 1, 3}) {
      for (const double latency : {0.517, 5.013}) {
        const std::uint32_t replicas = GENERATE(1, 2, 3);
        CAPTURE(schedule, staleness, latency, replicas);
        const Schedule& row = findSchedule(schedule);
        if (staleness > 0 && !supportsStaleness(row, replicas)) continue;
        test::VirtualOptions options;
        options.schedule = &row;
        options.microBatches = 4;
        // No two events happen at the same time.
        options.seconds = test::scheduledSeconds({1, 1.071, 0.937, 1.533, 1.979, 0});
        options.latency = latency;
        options.staleness = staleness;
        options.replicas = replicas;
        options.reduceSeconds = replicas > 1 ? 1.377 : 0;
        const std::vector<double> ends =
            test::VirtualRun(options).train(1, std::vector<std::uint32_t>(60, 4));
        StepCosts costs;
        costs.microBatches = 4;
        costs.headForward = 1;
        costs.tailStep = 1.071;
        costs.headBackward = 0.937;
        costs.body().replicas = {replicas, 0, options.reduceSeconds};
        BodyCosts& body = costs.bodies.front();
        body.forward = 1.533;
        body.backward = 1.979;
        body.rateUp = body.rateDown = 1e9;
        body.latency = latency;
        for (const Flow flow : body.place.flows()) costs.flows[flow] = {};
        const Policy policy = policyOf(row, row.defaultInFlight(4 * (staleness + 1)));
        CHECK(steadyStepSeconds(costs, policy, staleness) ==
              Approx((ends[47] - ends[15]) / 32).epsilon(1e-6));
      }
    }
  }
}

TEST_CASE("staleness hides latency until a device is always busy") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const int bodies = 1 + static_cast<int>(seed % 4);
    CAPTURE(seed, bodies);
    const StepCosts costs = randomCosts(seed, bodies);
    const Schedule& row = findSchedule("priority");
    double before = simulated(costs, "priority");
    for (const std::uint32_t staleness : {1, 3}) {
      const Policy policy =
          policyOf(row, row.defaultInFlight(costs.microBatches * (staleness + 1)));
      const double seconds = steadyStepSeconds(costs, policy, staleness);
      // The lead of one device over the other may still change slowly.
      CHECK(seconds >= steadyStepBound(costs, staleness).seconds * 0.99);
      CHECK(seconds <= before * 1.01);
      before = seconds;
    }
  }
}
