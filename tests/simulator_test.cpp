#include "common/predict/simulator.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "common/core/random.h"

using namespace cleave;

namespace {

double simulated(const StepCosts& costs, std::string_view schedule) {
  const Schedule& row = findSchedule(schedule);
  return simulateStep(costs, policyOf(row, row.defaultInFlight(costs.microBatches))).seconds;
}

// Random seconds and bytes over three orders of magnitude.
StepCosts randomCosts(std::uint64_t seed) {
  const RandomKey key = randomKey(seed, "simulator-test");
  std::uint64_t draw = 0;
  const auto uniform = [&] { return static_cast<double>(randomBits(key, draw++) >> 11) * 0x1p-53; };
  const auto some = [&](double least) { return least * std::pow(1000.0, uniform()); };
  StepCosts costs;
  costs.microBatches = 1 + static_cast<std::uint32_t>(uniform() * 12);
  for (double& seconds : costs.seconds) seconds = some(1e-4);
  for (double& bytes : costs.bytes) bytes = some(1e4);
  const bool coded = uniform() < 0.5;
  for (double& seconds : costs.encodeSeconds) seconds = coded ? some(1e-5) : 0;
  for (double& seconds : costs.decodeSeconds) seconds = coded ? some(1e-5) : 0;
  costs.rateUp = some(1e7);
  costs.rateDown = some(1e7);
  costs.latency = some(1e-4);
  costs.updateSeconds = some(1e-4);
  return costs;
}

}  // namespace

TEST_CASE("one micro-batch takes its path") {
  StepCosts costs = randomCosts(3);
  costs.microBatches = 1;
  for (const Schedule& schedule : scheduleTable()) {
    CHECK(simulated(costs, schedule.name) == Approx(stepBound(costs).seconds).epsilon(1e-9));
  }
}

TEST_CASE("no order is faster than the bound") {
  double nearest = 1e9;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const StepCosts costs = randomCosts(seed);
    const double bound = stepBound(costs).seconds;
    for (const Schedule& schedule : scheduleTable()) {
      INFO("seed " << seed << ", " << schedule.name);
      const double seconds = simulated(costs, schedule.name);
      REQUIRE(seconds >= bound * (1 - 1e-9));
      nearest = std::min(nearest, seconds / bound);
    }
  }
  CHECK(nearest < 1.001);  // and is reached
}

TEST_CASE("the search finds nothing below the bound, and nothing worse than a schedule") {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    StepCosts costs = randomCosts(seed);
    costs.microBatches = std::min(costs.microBatches, 4u);
    const double best = bestStepSeconds(costs, 50);
    CHECK(best >= stepBound(costs).seconds * (1 - 1e-9));
    CHECK(best <= simulated(costs, "priority") * (1 + 1e-9));
    CHECK(best == bestStepSeconds(costs, 50));
  }
}

TEST_CASE("a busy client works without a pause between its actions, a fast link waits") {
  StepCosts costs;
  costs.microBatches = 8;
  costs.seconds = {10e-3, 2e-3, 20e-3, 1e-3, 1e-3};
  costs.bytes.fill(1e3);
  costs.rateUp = costs.rateDown = 1e9;
  costs.latency = 1e-6;
  const double work = 8 * 32e-3;
  CHECK(simulated(costs, "priority") == Approx(work).epsilon(0.02));
}

TEST_CASE("an urgent tensor overtakes after the segments that are chosen already") {
  // gradient/1 waits for at most one and a half segments, plus the link's own queue.
  StepCosts costs;
  costs.microBatches = 2;
  costs.seconds = {1e-3, 1e-3, 1e-3, 1e-3, 1e-3};
  costs.bytes = {10e6, 1e3, 1e5, 1e3};
  costs.rateUp = costs.rateDown = 12.5e6;  // 100 Mbit/s: 64 KiB segments, 5.2 ms each
  costs.latency = 0.1e-3;
  const double segment = 65536;
  costs.queueBytes = GENERATE_COPY(0.0, 3 * segment);
  const SimulatedStep step =
      simulateStep(costs, policyOf(findSchedule("priority"), 2), /*withTimeline=*/true);
  double queued = 0;
  double across = 0;
  for (const Span& span : step.timeline) {
    if (span.what == "TailStep 0") queued = span.end;
    if (span.what == "gradient/1 0") across = span.end;
  }
  REQUIRE(queued > 0.8);
  const double waited = (across - queued) * costs.rateUp - 1e5;  // bytes
  CHECK(waited <= costs.queueBytes + 1.5 * segment + 1);
  CHECK(waited > costs.queueBytes);
}

TEST_CASE("the timeline has every action once, and no lane does two things at once") {
  const StepCosts costs = randomCosts(8);
  const SimulatedStep step =
      simulateStep(costs, policyOf(findSchedule("1f1b"), 1 + costs.microBatches / 2),
                   /*withTimeline=*/true);
  std::map<Span::Lane, double> free;
  std::map<std::string, int> count;
  for (const Span& span : step.timeline) {
    CHECK(span.begin >= free[span.lane] - 1e-12);
    free[span.lane] = span.end;
    ++count[span.what];
  }
  for (std::uint32_t i = 0; i < costs.microBatches; ++i) {
    for (const char* kind :
         {"HeadForward ", "TailStep ", "HeadBackward ", "BodyForward ", "BodyBackward "}) {
      CHECK(count[kind + std::to_string(i)] == 1);
    }
  }
}

TEST_CASE("a policy that picks nothing is an error, not an endless loop") {
  const Policy never{[](const ReadyKinds&, const StageState&) { return std::nullopt; },
                     [](Flow, std::uint32_t) { return 0; }, 1};
  CHECK_THROWS_AS(simulateStep(randomCosts(1), never), std::logic_error);
}
