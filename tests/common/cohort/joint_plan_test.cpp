#include "common/cohort/joint_plan.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "common/core/random.h"
#include "tests/support/error_code.h"

namespace cleave {
namespace {

// A plan with random sizes.
struct RandomPlan {
  explicit RandomPlan(std::uint64_t seed) : key(randomKey(seed, "plan")) {
    members = 1 + number(8);
    for (std::uint32_t m = 0; m < members; ++m) {
      roster.train.push_back(m > 0 && number(4) == 0 ? 0 : 1 + number(60));
      roster.evaluation.push_back(number(20));
    }
    options.seed = seed;
    options.batch = 1 + number(40);
    options.evalBatch = 1 + number(40);
    options.microBatches = 1 + number(options.batch);
  }
  std::uint32_t number(std::uint32_t below) {
    return static_cast<std::uint32_t>(randomBits(key, counter++) % below);
  }

  RandomKey key;
  std::uint64_t counter = 0;
  std::uint32_t members = 0;
  Roster roster;
  JointPlan::Options options;
};

TEST_CASE("an epoch of a cohort has each sample once, in the batches of one client with all") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    RandomPlan random(seed);
    const JointPlan plan(random.options, random.roster);
    const std::uint64_t epoch = 1 + seed % 3;
    const JointPlan::Pass whole = plan.trainingPass(std::nullopt, epoch);
    CAPTURE(seed, random.members, random.options.batch, random.options.microBatches);

    std::vector<std::uint32_t> sorted = whole.order;
    std::ranges::sort(sorted);
    REQUIRE(sorted.size() == plan.samples());
    for (std::uint32_t s = 0; s < sorted.size(); ++s) REQUIRE(sorted[s] == s);
    REQUIRE(whole.sizes.size() == plan.lastStepOf(1));

    // The members' samples, joined batch by batch in the order of the members, are those of all.
    std::vector<JointPlan::Pass> passes;
    std::vector<std::size_t> next(random.members);
    for (std::uint32_t m = 0; m < random.members; ++m) {
      passes.push_back(plan.trainingPass(m, epoch));
      REQUIRE(passes[m].sizes.size() == whole.sizes.size());
    }
    std::vector<std::uint32_t> joined;
    for (std::size_t b = 0; b < whole.sizes.size(); ++b) {
      const Division division =
          plan.division(Phase::train, (epoch - 1) * plan.lastStepOf(1) + b + 1);
      REQUIRE(division.samples == whole.sizes[b]);
      REQUIRE(division.count <= maxMicroBatches(random.options.microBatches, random.members));
      for (std::uint32_t m = 0; m < random.members; ++m) {
        REQUIRE(division.members[m].samples == passes[m].sizes[b]);
        for (std::uint32_t n = 0; n < passes[m].sizes[b]; ++n) {
          joined.push_back(plan.firstSampleOf(m) + passes[m].order[next[m]++]);
        }
      }
    }
    REQUIRE(joined == whole.order);
  }
}

// A roster in which members have left and come back. Members without samples are left out too.
Roster withChanges(RandomPlan& random) {
  Roster roster = random.roster;
  std::uint64_t step = 1, evaluated = 0;
  for (std::uint32_t n = random.number(5); n != ~0u; --n) {
    Attendance next{step, evaluated, {}};
    for (std::uint32_t m = 0; m < random.members; ++m) {
      if (m == 0 || random.number(3) > 0) next.present.push_back(m);
    }
    roster.attendance.push_back(std::move(next));
    step += 1 + random.number(8);
    evaluated += random.number(4);
  }
  return roster;
}

TEST_CASE(
    "when members leave or come back, each sample of those at the end of an epoch is in it once") {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    RandomPlan random(seed);
    const Roster roster = withChanges(random);
    const JointPlan plan(random.options, roster);
    const std::vector<Attendance>& attendance = roster.attendance;
    CAPTURE(seed, random.members, random.options.batch, attendance.size());
    std::size_t now = 0;  // attendance
    std::uint64_t step = 0;
    const std::uint64_t epochs = plan.epochOf(attendance.back().firstStep) + 2;
    for (std::uint64_t epoch = 1; epoch <= epochs; ++epoch) {
      REQUIRE(plan.lastStepOf(epoch - 1) == step);
      const JointPlan::Pass whole = plan.trainingPass(std::nullopt, epoch);
      std::vector<JointPlan::Pass> passes;
      for (std::uint32_t m = 0; m < random.members; ++m) {
        passes.push_back(plan.trainingPass(m, epoch));
      }
      std::vector<std::uint32_t> joined, uses(plan.firstSampleOf(random.members));
      std::vector<std::size_t> next(random.members);
      for (std::size_t b = 0; b < whole.sizes.size(); ++b) {
        ++step;
        while (now + 1 < attendance.size() && attendance[now + 1].firstStep <= step) ++now;
        REQUIRE(plan.epochOf(step) == epoch);
        const Division division = plan.division(Phase::train, step);
        REQUIRE(division.samples == whole.sizes[b]);
        REQUIRE(division.members.size() == attendance[now].present.size());
        std::uint32_t ofPresent = 0;
        for (std::size_t p = 0; p < attendance[now].present.size(); ++p) {
          const std::uint32_t m = attendance[now].present[p];
          REQUIRE(division.members[p].samples == passes[m].sizes[b]);
          ofPresent += passes[m].sizes[b];
          for (std::uint32_t n = 0; n < passes[m].sizes[b]; ++n) {
            joined.push_back(plan.firstSampleOf(m) + passes[m].order[next[m]++]);
          }
        }
        REQUIRE(ofPresent == whole.sizes[b]);
      }
      REQUIRE(joined == whole.order);
      for (const std::uint32_t sample : joined) ++uses[sample];
      REQUIRE(std::ranges::max(uses) == 1);
      for (const std::uint32_t m : attendance[now].present) {
        for (std::uint32_t s = plan.firstSampleOf(m); s < plan.firstSampleOf(m + 1); ++s) {
          REQUIRE(uses[s] == 1);
        }
      }
    }
  }
}

TEST_CASE("a change of the members changes nothing before it") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    RandomPlan random(seed);
    const Roster later = withChanges(random);
    const JointPlan plan(random.options, later);
    Roster before = later;
    const Attendance last = before.attendance.back();
    before.attendance.pop_back();
    if (before.attendance.empty()) continue;
    const JointPlan earlier(random.options, before);
    for (std::uint64_t step = 1; step < last.firstStep; ++step) {
      CHECK(plan.division(Phase::train, step) == earlier.division(Phase::train, step));
    }
    for (std::uint64_t batch = 1; batch <= last.evaluated; ++batch) {
      CHECK(plan.division(Phase::eval, batch) == earlier.division(Phase::eval, batch));
    }
    const Division first = plan.division(Phase::eval, last.evaluated + 1);
    const JointPlan::Pass pass = plan.evaluationPass(std::nullopt);
    CHECK(first.samples == (pass.sizes.empty() ? 0 : pass.sizes.front()));
  }
}

TEST_CASE("an attendance that is not possible is refused") {
  const auto codeOf = [](std::vector<Attendance> attendance) {
    return errorCode([&] { JointPlan({1, 10, 10, 2}, {{30, 0, 20}, {1, 1, 1}, attendance}); });
  };
  CHECK(codeOf({{1, 0, {0, 1, 2}}, {4, 0, {0}}, {9, 3, {0, 2}}}) == "");
  for (const std::vector<Attendance>& wrong :
       std::vector<std::vector<Attendance>>{{{2, 0, {0}}},
                                            {{1, 1, {0}}},
                                            {{1, 0, {}}},
                                            {{1, 0, {1}}},
                                            {{1, 0, {0, 3}}},
                                            {{1, 0, {2, 0}}},
                                            {{1, 0, {0, 0}}},
                                            {{1, 0, {0}}, {1, 0, {2}}},
                                            {{1, 0, {0}}, {5, 2, {2}}, {6, 1, {0}}}}) {
    CHECK(codeOf(wrong) == "bad-cohort");
  }
}

TEST_CASE("a cohort evaluates the samples of its members in their order") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    RandomPlan random(seed);
    const JointPlan plan(random.options, random.roster);
    const JointPlan::Pass pass = plan.evaluationPass(std::nullopt);
    std::vector<std::uint32_t> all(
        std::accumulate(random.roster.evaluation.begin(), random.roster.evaluation.end(), 0u));
    std::iota(all.begin(), all.end(), 0u);
    CHECK(pass.order == all);
    // The numbers of evaluation batches continue from one evaluation to the next.
    for (std::size_t b = 0; b < 2 * pass.sizes.size(); ++b) {
      CHECK(plan.division(Phase::eval, b + 1).samples == pass.sizes[b % pass.sizes.size()]);
    }
  }
}

TEST_CASE("a cohort of one has the batches of a client without a cohort") {
  JointPlan::Options options;
  options.batch = 32;
  options.microBatches = 4;
  options.seed = 7;
  const JointPlan plan(options, {{100}, {10}});
  const JointPlan::Pass pass = plan.trainingPass(0, 2);
  CHECK(pass.order == randomPermutation(randomKey(7, "shuffle", {2}), 100));
  CHECK(pass.sizes == std::vector<std::uint32_t>{32, 32, 32, 4});
  const Division division = plan.division(Phase::train, 1);
  const Division alone = Division::of(32, 4);
  CHECK(division.count == alone.count);
  for (std::uint32_t i = 0; i < alone.count; ++i) CHECK(division.size(i) == alone.size(i));
}

TEST_CASE("a cohort without evaluation samples has no evaluation batch") {
  const JointPlan plan({1, 10, 10, 2}, {{30, 20}, {0, 0}});
  CHECK(plan.evaluationPass(std::nullopt).sizes.empty());
  CHECK(plan.division(Phase::eval, 1).count == 0);
}

TEST_CASE("a peer that names many epochs does not fill the memory of the plan") {
  const JointPlan plan({1, 10, 10, 2}, {{30, 20}, {1, 1}});
  const Division first = plan.division(Phase::train, 3);
  for (std::uint64_t step = 1; step < 100000; step += 97) plan.division(Phase::train, step);
  CHECK(plan.division(Phase::train, 3) == first);
}

}  // namespace
}  // namespace cleave
