// The order of actions of each schedule on both sides, in virtual time. Each action takes one
// second unless stated otherwise, and transfers take no time.
#include <catch2/catch.hpp>
#include <set>

#include "tests/support/models/virtual_run.h"

namespace cleave::test {
namespace {

struct Orders {
  std::string client;
  std::string server;
};

Orders ordersOf(const std::string& schedule, std::uint32_t microBatches, std::uint32_t inFlight = 0,
                Phase phase = Phase::train, double bodySeconds = 1) {
  VirtualOptions options;
  options.seconds = scheduledSeconds({1, 1, 1, bodySeconds, bodySeconds, bodySeconds});
  options.schedule = &findSchedule(schedule);
  options.microBatches = microBatches;
  options.inFlight = inFlight;
  VirtualRun pair(options);
  pair.run(phase, 1, microBatches);
  return {pair.takeClientOrder(), pair.takeServerOrder()};
}

TEST_CASE("every kind of action has a name of its own") {
  std::set<std::string_view> names;
  for (std::size_t kind = 0; kind < kActionKinds; ++kind) {
    names.insert(actionName(static_cast<ActionKind>(kind)));
  }
  CHECK(names.size() == kActionKinds);
  CHECK_FALSE(names.contains(""));
  // Arrays indexed by kind end at `restore`, so it must be the last value of the enumeration.
  CHECK(indexOf(ActionKind::sum) + 1 == kActionKinds);
}

TEST_CASE("gpipe runs all forwards, then all backwards") {
  const Orders orders = ordersOf("gpipe", 3);
  CHECK(orders.client == "F0 F1 F2 T0 T1 T2 H0 H1 H2");
  CHECK(orders.server == "F0 F1 F2 B0 B1 B2");
}

TEST_CASE("after its warm-up, 1f1b alternates one forward and one backward") {
  const Orders orders = ordersOf("1f1b", 6, 4);
  CHECK(orders.client == "F0 F1 F2 F3 T0 T1 H0 F4 T2 H1 F5 T3 H2 T4 H3 T5 H4 H5");
  CHECK(orders.server == "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5");
}

TEST_CASE("servers keep the order of 1f1b for any timing, because they wait for the next action") {
  VirtualOptions options;
  options.schedule = &findSchedule("1f1b");
  options.microBatches = 8;
  options.bodies = 2;
  for (std::uint64_t seed = 1; seed < 20; ++seed) {
    options.jitterSeed = seed;
    options.latency = 2;
    options.tensorSeconds = 0.5;
    VirtualRun row(options);
    row.run(Phase::train, 1, 8);
    CHECK(row.takeServerOrder(0) == "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7");
    CHECK(row.takeServerOrder(1) == "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7");
  }
}

// The seconds per step of servers in a row of which each takes 1 s per forward and 2 s per
// backward, with a free link and a client that takes no time. With staleness: of the later steps of
// a long run.
double rowSeconds(const std::string& schedule, std::size_t bodies, std::uint32_t microBatches,
                  std::uint32_t staleness = 0) {
  VirtualOptions options;
  options.schedule = &findSchedule(schedule);
  options.seconds = scheduledSeconds({0, 0, 0, 1, 2, 1});
  options.bodies = bodies;
  options.microBatches = microBatches;
  options.staleness = staleness;
  VirtualRun run(options);
  if (staleness == 0) return run.run(Phase::train, 1, microBatches);
  const std::vector<double> ends = run.train(1, std::vector<std::uint32_t>(60, microBatches));
  return (ends[48] - ends[24]) / 24;
}

TEST_CASE("a row of servers with 1f1b is as fast as with gpipe, and always busy with staleness") {
#ifdef CLEAVE_SANITIZED
  constexpr std::size_t kMostBodies = 3;
#else
  constexpr std::size_t kMostBodies = 6;
#endif
  for (std::size_t bodies = 1; bodies <= kMostBodies; ++bodies) {
    for (const std::uint32_t microBatches : {1, 4, 8, 16}) {
      CAPTURE(bodies, microBatches);
      const double alone = rowSeconds("1f1b", bodies, microBatches);
      CHECK(alone == 3.0 * (microBatches + static_cast<double>(bodies) - 1));
      CHECK(alone == rowSeconds("gpipe", bodies, microBatches));
      const double busy = 3.0 * microBatches;
      if (microBatches >= 4) {
        CHECK(rowSeconds("1f1b", bodies, microBatches, 3) == busy);
        // With D = 1 and more servers, too few micro-batches are in flight at the end of a step.
        if (bodies <= 5) CHECK(rowSeconds("1f1b", bodies, microBatches, 1) == busy);
      }
      // PipeDream's own setting: a batch is not divided, and there are as many batches as stages.
      if (bodies > 1) {
        CHECK(rowSeconds("1f1b", bodies, 1, static_cast<std::uint32_t>(bodies) - 1) == 3);
      }
    }
  }
}

TEST_CASE("priority prefers the action that unlocks the most") {
  // The server takes half a second per action. At time 2, the client could continue with F2, but T0
  // is ready and preferred. At time 4, H0 is ready too, but F2 is preferred because it gives work
  // to the server.
  const Orders orders = ordersOf("priority", 4, 0, Phase::train, 0.5);
  CHECK(orders.client == "F0 F1 T0 T1 F2 F3 T2 T3 H0 H1 H2 H3");
  CHECK(orders.server == "F0 F1 B0 B1 F2 F3 B2 B3");
}

TEST_CASE("zb computes the gradients of the weights when there is nothing else to do") {
  // As with priority, but the server computes W0 to W3 when it would otherwise be idle.
  const Orders orders = ordersOf("zb", 4, 0, Phase::train, 0.5);
  CHECK(orders.client == ordersOf("priority", 4, 0, Phase::train, 0.5).client);
  CHECK(orders.server == "F0 F1 B0 W0 B1 W1 F2 F3 B2 W2 B3 W3");
  // A server that is the bottleneck defers W0 to W3 to the end.
  CHECK(ordersOf("zb", 4, 0, Phase::train, 3).server == "F0 F1 B0 B1 F2 F3 B2 B3 W0 W1 W2 W3");
}

TEST_CASE("a body that sends no gradients does not split its backward") {
  Place place;
  CHECK(bodyRows(place, 1, /*splitsBackward=*/true).rows.size() == 3);
  place.first.front().hasGradient = false;
  CHECK(bodyRows(place, 1, /*splitsBackward=*/true).rows.size() == 2);
}

TEST_CASE("evaluation runs forwards only") {
  CHECK(ordersOf("gpipe", 3, 0, Phase::eval).client == "F0 F1 F2 T0 T1 T2");
  CHECK(ordersOf("gpipe", 3, 0, Phase::eval).server == "F0 F1 F2");
  CHECK(ordersOf("1f1b", 4, 2, Phase::eval).client == "F0 F1 T0 F2 T1 F3 T2 T3");
  CHECK(ordersOf("priority", 3, 0, Phase::eval).server == "F0 F1 F2");
  CHECK(ordersOf("zb", 3, 0, Phase::eval).server == "F0 F1 F2");
}

TEST_CASE("no schedule deadlocks, and none exceeds its micro-batches in flight") {
  for (const Schedule& schedule : scheduleTable()) {
    for (std::uint32_t microBatches = 1; microBatches <= 9; ++microBatches) {
      for (std::uint32_t inFlight = schedule.minInFlight(microBatches); inFlight <= microBatches;
           ++inFlight) {
        CAPTURE(schedule.name, microBatches, inFlight);
        VirtualOptions options;
        options.schedule = &schedule;
        options.microBatches = microBatches;
        options.inFlight = inFlight;
        options.bodies = 1 + (microBatches + inFlight) % 4;
        options.jitterSeed = 7;
        options.tensorSeconds = 1;
        options.latency = 0.5;
        VirtualRun pair(options);
        pair.run(Phase::train, 1, 64);
        pair.run(Phase::eval, 1, 64);
        pair.run(Phase::train, 2, 3);  // the batch has fewer samples than micro-batches
        CHECK(pair.maxInFlight() <= inFlight);
      }
    }
  }
}

TEST_CASE("with staleness, 1f1b goes on alternating over the steps") {
  VirtualOptions options;
  options.schedule = &findSchedule("1f1b");
  options.microBatches = 1;
  options.staleness = 3;
  VirtualRun pair(options);
  pair.train(1, {1, 1, 1, 1, 1, 1});
  // As without staleness and with six micro-batches in a step.
  CHECK(pair.takeClientOrder() == "F0 F0 F0 F0 T0 T0 H0 F0 T0 H0 F0 T0 H0 T0 H0 T0 H0 H0");
  CHECK(pair.takeServerOrder() == "F0 F0 B0 F0 B0 F0 B0 F0 B0 F0 B0 B0");
}

TEST_CASE("with staleness, no schedule deadlocks, and none exceeds its micro-batches in flight") {
  for (const Schedule& schedule : scheduleTable()) {
    if (!schedule.overlapsSteps) continue;
    for (std::uint32_t staleness = 1; staleness <= 3; ++staleness) {
      for (std::uint32_t microBatches = 1; microBatches <= 5; ++microBatches) {
        const std::uint32_t all = microBatches * (staleness + 1);
        for (std::uint32_t w = schedule.minInFlight(all); w <= all; ++w) {
          CAPTURE(schedule.name, staleness, microBatches, w);
          VirtualOptions options;
          options.schedule = &schedule;
          options.microBatches = microBatches;
          options.inFlight = w;
          options.staleness = staleness;
          options.bodies = 1 + (microBatches + w) % 4;
          options.jitterSeed = 7;
          options.tensorSeconds = 1;
          options.latency = 0.5;
          VirtualRun run(options);
          run.train(1, {64, 64, 3, 64, 2, 64});
          run.run(Phase::eval, 1, 64);
          run.train(7, {64, 1, 64});
          CHECK(run.maxInFlight() <= w);
        }
      }
    }
  }
}

// If the server's two actions take as long as the client's three, and transfers take no time, a
// pipeline keeps both sides busy except while it fills and drains.
TEST_CASE("priority overlaps the work of both sides") {
  VirtualOptions options;
  options.schedule = &findSchedule("priority");
  options.microBatches = 16;
  options.seconds = scheduledSeconds({1, 1, 1, 1.5, 1.5, 0});
  const double pipelined = VirtualRun(options).run(Phase::train, 1, 16);
  options.microBatches = 1;
  const double alone = 16 * VirtualRun(options).run(Phase::train, 1, 1);
  CHECK(alone == Approx(16 * 6));
  CHECK(pipelined < 0.6 * alone);
}

TEST_CASE("an urgent tensor is sent before one that was queued first") {
  for (const Schedule& schedule : scheduleTable()) {
    for (const Flow flow : {activationAt(0), gradientAt(0)}) {
      CHECK(schedule.linkPriority(flow, {}) >= schedule.linkPriority(gradientAt(1), {}));
    }
  }
  const Schedule& priority = findSchedule("priority");
  CHECK(priority.linkPriority(gradientAt(1), {}) < priority.linkPriority(activationAt(0), {}));
  CHECK(priority.linkPriority(activationAt(1), {}) < priority.linkPriority(gradientAt(0), {}));
  const Place second{1, 2};
  CHECK(priority.linkPriority(gradientAt(2), second) <
        priority.linkPriority(activationAt(1), second));
}

TEST_CASE("too few or too many micro-batches in flight are refused with the range") {
  CHECK(resolveInFlight(findSchedule("1f1b"), 0, 8) == 4);
  CHECK(resolveInFlight(findSchedule("1f1b"), 0, 16, 3) == 8);
  CHECK(resolveInFlight(findSchedule("1f1b"), 0, 4, 3) == 4);
  CHECK(resolveInFlight(findSchedule("priority"), 0, 8) == 8);
  CHECK_THROWS_AS(resolveInFlight(findSchedule("1f1b"), 1, 8), UsageError);
  CHECK_THROWS_AS(resolveInFlight(findSchedule("gpipe"), 4, 8), UsageError);
  CHECK_THROWS_AS(resolveInFlight(findSchedule("priority"), 9, 8), UsageError);
  try {
    resolveInFlight(findSchedule("gpipe"), 4, 8);
  } catch (const UsageError& error) {
    CHECK(error.hint() == "give a number in 8…8, or 0 for the schedule's default");
  }
}

TEST_CASE("an unknown schedule is refused with the nearest known name") {
  try {
    findSchedule("priorty");
    FAIL("was accepted");
  } catch (const UsageError& error) {
    CHECK(error.code() == "unknown-schedule");
    CHECK(error.hint() == "did you mean priority? use one of priority, gpipe, 1f1b, zb");
  }
}

}  // namespace
}  // namespace cleave::test
