#include "server/run/membership.h"

#include <catch2/catch.hpp>
#include <deque>

#include "common/link/wire_messages.h"
#include "tests/support/error_code.h"

namespace cleave {
namespace {

using Steps = std::vector<std::uint64_t>;

const std::vector<std::uint32_t> kAll = {0, 1, 2};

// Three members, of which two are enough.
struct Clinics {
  Clinics() {
    cohort.id = "lungs";
    cohort.members = {"north", "south", "west"};
    cohort.minMembers = 2;
  }

  // A member that has saved these steps, each after twice as many evaluation batches, and has
  // committed the first of them, with this digest.
  void connect(std::uint32_t number, const Steps& saved, const Steps& committed,
               std::vector<Attendance> attendance = {{1, 0, kAll}}, char digest = 's') {
    wire::Hello& hello = hellos.emplace_back();
    wire::Member& member = *hello.mutable_member();
    member.set_name(cohort.members[number]);
    member.set_train_samples(10 + number);
    for (const std::uint64_t step : saved) {
      wire::OwnState& state = *member.add_saved();
      state.set_step(step);
      state.set_evaluated(2 * step);
    }
    if (!saved.empty()) {
      toWire(Roster{{10, 11, 12}, {0, 0, 0}, std::move(attendance)}, *member.mutable_plan());
    }
    for (const std::uint64_t step : committed) {
      wire::Commit& commit = *hello.add_committed();
      commit.set_step(step);
      commit.set_sha256(std::string(32, digest));
    }
    members.push_back({number, &hello});
  }
  Gathering gathered() const { return gather(cohort, members); }
  // With a server that has the checkpoints of these steps with this digest.
  Gathering gathered(const Steps& steps, char digest) const {
    std::vector<wire::Commit> available;
    for (const std::uint64_t step : steps) {
      wire::Commit& commit = available.emplace_back();
      commit.set_step(step);
      commit.set_sha256(std::string(32, digest));
    }
    return gather(cohort, members, &available);
  }

  Cohort cohort;
  std::deque<wire::Hello> hellos;
  std::vector<Announced> members;
};

Steps stepsOf(const Gathering& gathering) {
  Steps steps;
  for (const wire::Commit& each : gathering.commits) steps.push_back(each.step());
  return steps;
}

TEST_CASE("members without checkpoints begin at step 0") {
  Clinics clinics;
  for (const std::uint32_t number : kAll) clinics.connect(number, {}, {});
  CHECK_FALSE(haveBegun(clinics.members));
  const Gathering gathering = clinics.gathered();
  CHECK(gathering.commits.empty());
  CHECK(gathering.joining.empty());
  const Roster roster = rosterFrom(gathering, 0, kAll);
  CHECK(roster == Roster{{10, 11, 12}, {0, 0, 0}, {{1, 0, kAll}}});
}

TEST_CASE("members continue from the steps that all have saved and one has committed") {
  Clinics clinics;
  clinics.connect(0, {9, 6, 3}, {6, 3});
  clinics.connect(1, {9, 6, 3}, {9, 6});
  clinics.connect(2, {6, 3}, {6, 3});
  CHECK(haveBegun(clinics.members));
  const Gathering gathering = clinics.gathered();
  CHECK(stepsOf(gathering) == Steps{6, 3});
  CHECK(gathering.joining.empty());
  CHECK(rosterFrom(gathering, 6, kAll).attendance == std::vector<Attendance>{{1, 0, kAll}});
}

TEST_CASE(
    "a member that stays away is left out from the next step on, and joins when it comes back") {
  Clinics clinics;
  clinics.connect(0, {6, 3}, {6, 3});
  clinics.connect(1, {6, 3}, {6, 3});
  const Roster roster = rosterFrom(clinics.gathered(), 6, {0, 1});
  const std::vector<Attendance> left = {{1, 0, kAll}, {7, 12, {0, 1}}};
  CHECK(roster.attendance == left);
  CHECK(roster.train == std::vector<std::uint32_t>{10, 11, 12});

  // The attempt from step 6 has saved nothing: all can continue from there.
  CHECK(rosterFrom(clinics.gathered(), 6, kAll).attendance ==
        std::vector<Attendance>{{1, 0, kAll}});

  Clinics later;
  later.connect(0, {9, 6}, {9, 6}, left);
  later.connect(1, {9, 6}, {9, 6}, left);
  later.connect(2, {6, 3}, {6, 3});
  const Gathering gathering = later.gathered();
  CHECK(stepsOf(gathering) == Steps{9, 6});
  CHECK(gathering.joining == std::vector<std::uint32_t>{2});
  const std::vector<Attendance> back = {left[0], left[1], {10, 18, kAll}};
  CHECK(rosterFrom(gathering, 9, kAll).attendance == back);
  // Without the newest checkpoint, which the server may have lost.
  CHECK(rosterFrom(gathering, 6, {0, 1}).attendance == left);
}

TEST_CASE("a step that a member has saved in another attempt does not count") {
  const std::vector<Attendance> left = {{1, 0, kAll}, {4, 6, {0, 1}}};
  Clinics clinics;
  clinics.connect(0, {6, 3}, {6, 3}, left);
  clinics.connect(1, {6, 3}, {6, 3}, left);
  clinics.connect(2, {6, 3}, {3});
  CHECK(clinics.gathered().joining == std::vector<std::uint32_t>{2});
}

TEST_CASE("members cannot join a cohort that needs all, or without a state") {
  const auto refused = [](Clinics& clinics) { return errorCode([&] { clinics.gathered(); }); };
  Clinics all;  // are needed
  all.cohort.minMembers = 0;
  all.connect(0, {6}, {6});
  all.connect(1, {6}, {6});
  all.connect(2, {}, {});
  CHECK(refused(all) == "other-member");
  all.cohort.minMembers = 2;
  CHECK(refused(all) == "");

  Clinics damaged;  // the only checkpoint
  damaged.connect(0, {}, {6});
  damaged.connect(1, {}, {});
  CHECK(refused(damaged) == "other-member");
}

TEST_CASE("the members that went on go back to a checkpoint that they have in common") {
  const std::vector<Attendance> left = {{1, 0, kAll}, {4, 6, {0, 1}}};
  Clinics clinics;
  clinics.connect(0, {9, 6}, {9, 6}, left);
  clinics.connect(1, {6}, {9, 6}, left);  // the newest is damaged
  CHECK(stepsOf(clinics.gathered()) == Steps{6});
  CHECK(clinics.gathered().joining.empty());
  clinics.connect(2, {3}, {3});
  CHECK(clinics.gathered().joining == std::vector<std::uint32_t>{2});
}

TEST_CASE("a member that has other data when it comes back is left out, if the others are enough") {
  const std::vector<Attendance> left = {{1, 0, kAll}, {4, 6, {0, 1}}};
  Clinics clinics;
  clinics.connect(0, {6}, {6}, left);
  clinics.connect(1, {6}, {6}, left);
  clinics.connect(2, {3}, {3});
  clinics.hellos.back().mutable_member()->set_train_samples(99);
  const Gathering gathering = clinics.gathered();
  CHECK(gathering.joining.empty());
  REQUIRE(gathering.unfit.contains(2));
  CHECK(gathering.unfit.at(2).code() == "other-member");
  clinics.cohort.minMembers = 3;
  CHECK(errorCode([&] { clinics.gathered(); }) == "other-member");
}

TEST_CASE("the first member joins with the state of another one") {
  const std::vector<Attendance> left = {{1, 0, kAll}, {4, 6, {1, 2}}};
  Clinics clinics;
  clinics.connect(0, {3}, {3});
  clinics.connect(1, {6}, {6}, left);
  clinics.connect(2, {6}, {6}, left);
  const Gathering gathering = clinics.gathered();
  CHECK(gathering.joining == std::vector<std::uint32_t>{0});
  CHECK(rosterFrom(gathering, 6, kAll).attendance ==
        std::vector<Attendance>{left[0], left[1], {7, 12, kAll}});
}

TEST_CASE("commits of which the server lacks its part do not count, whoever names them") {
  const std::vector<Attendance> left = {{1, 0, kAll}, {4, 6, {1, 2}}};
  Clinics clinics;
  clinics.connect(0, {9, 8, 6}, {9, 8, 6}, {{1, 0, kAll}}, 'a');  // of another attempt
  clinics.connect(1, {8, 7}, {8, 7}, left);
  clinics.connect(2, {8, 7}, {8, 7}, left);
  CHECK(candidates(clinics.members).size() == 5);
  const Gathering gathering = clinics.gathered({8, 7}, 's');
  CHECK(stepsOf(gathering) == Steps{8, 7});
  CHECK(gathering.joining == std::vector<std::uint32_t>{0});
  CHECK(stepsOf(clinics.gathered({7}, 's')) == Steps{7});
  CHECK(clinics.gathered({}, 's').commits.empty());
}

TEST_CASE("a member that was never there joins with its samples") {
  Clinics clinics;
  const Roster before{{10, 11, 0}, {0, 0, 0}, {{1, 0, {0, 1}}}};
  for (const std::uint32_t number : {0u, 1u}) {
    clinics.connect(number, {6}, {6});
    wire::CohortPlan& plan = *clinics.hellos.back().mutable_member()->mutable_plan();
    plan.Clear();
    toWire(before, plan);
  }
  clinics.connect(2, {}, {});
  const Gathering gathering = clinics.gathered();
  CHECK(gathering.joining == std::vector<std::uint32_t>{2});
  CHECK(rosterFrom(gathering, 6, kAll) ==
        Roster{{10, 11, 12}, {0, 0, 0}, {{1, 0, {0, 1}}, {7, 12, kAll}}});
}

TEST_CASE("a member with other data than before is refused") {
  Clinics clinics;
  for (const std::uint32_t number : kAll) clinics.connect(number, {3}, {3});
  clinics.hellos.back().mutable_member()->set_train_samples(13);
  CHECK(errorCode([&] { clinics.gathered(); }) == "other-member");
}

TEST_CASE("who takes part may change a limited number of times") {
  Clinics clinics;
  std::vector<Attendance> many;
  for (std::uint64_t n = 0; n < kMaxAttendances; ++n) {
    many.push_back({n + 1, 0, n % 2 == 0 ? kAll : std::vector<std::uint32_t>{0, 1}});
  }
  clinics.connect(0, {300}, {300}, many);
  clinics.connect(1, {300}, {300}, many);
  const Gathering gathering = clinics.gathered();
  CHECK(rosterFrom(gathering, 300, {0, 1}).attendance == many);
  CHECK(errorCode([&] { rosterFrom(gathering, 300, {0}); }) == "bad-cohort");
}

// A relay of the three members, of which `number` has saved these steps and committed all of them.
Gathering gatheredTurn(const std::optional<TurnRecord>& record, std::uint32_t number,
                       const Steps& saved, std::vector<Attendance> attendance,
                       const Steps& onServer) {
  Clinics clinics;
  clinics.cohort.mode = kRelay;
  clinics.connect(number, saved, saved, std::move(attendance));
  std::vector<wire::Commit> available;
  for (const std::uint64_t step : onServer) {
    wire::Commit& commit = available.emplace_back();
    commit.set_step(step);
    commit.set_sha256(std::string(32, 's'));
  }
  return gatherTurn(clinics.cohort, clinics.members.front(), record, available);
}

const Attendance kFirstTurn = {1, 0, {0}};

TurnRecord afterFirstTurn() {
  return {10, std::string(32, 's'), 3, Roster{{10, 0, 0}, {0, 0, 0}, {kFirstTurn}}, {}};
}

TEST_CASE("the first turn begins without a checkpoint") {
  const Gathering first = gatheredTurn(std::nullopt, 0, {}, {}, {});
  CHECK(first.commits.empty());
  CHECK(first.joining.empty());
  CHECK(first.roster.attendance == std::vector<Attendance>{kFirstTurn});
}

TEST_CASE("a member begins its turn with the state from the end of the last one") {
  const Gathering next = gatheredTurn(afterFirstTurn(), 1, {}, {}, {10});
  REQUIRE(next.commits.size() == 1);
  CHECK(next.commits.front().step() == 10);
  CHECK(next.joining == std::vector<std::uint32_t>{1});
  CHECK(next.roster.attendance == std::vector<Attendance>{kFirstTurn, {11, 3, {1}}});
  CHECK(next.roster.train == std::vector<std::uint32_t>{10, 11, 0});
  // Also if it had the last one, because the others stay away.
  const Gathering again = gatheredTurn(afterFirstTurn(), 0, {5, 10}, {kFirstTurn}, {10});
  CHECK(again.joining == std::vector<std::uint32_t>{0});
  CHECK(again.roster.attendance == std::vector<Attendance>{kFirstTurn, {11, 3, {0}}});
}

TEST_CASE("a member continues its own turn from its newest checkpoint that the server has too") {
  const std::vector<Attendance> own = {kFirstTurn, {11, 3, {1}}};
  const Gathering midway = gatheredTurn(afterFirstTurn(), 1, {12, 14, 16}, own, {10, 12, 14});
  REQUIRE(midway.commits.size() == 2);
  CHECK(midway.commits.front().step() == 14);
  CHECK(midway.evaluated.at(14) == 28);
  CHECK(midway.joining.empty());
  CHECK(midway.roster.attendance == own);
}

TEST_CASE("the checkpoints of a turn that was lost do not count") {
  TurnRecord record = afterFirstTurn();
  record.step = 15;
  record.roster.attendance.push_back({11, 3, {2}});
  const std::vector<Attendance> lost = {kFirstTurn, {11, 3, {1}}};
  const Gathering next = gatheredTurn(record, 1, {12, 20}, lost, {12, 15, 20});
  CHECK(next.commits.front().step() == 15);
  CHECK(next.joining == std::vector<std::uint32_t>{1});
  CHECK(errorCode([&] { gatheredTurn(record, 1, {}, {}, {12}); }) == "no-checkpoint");
}

}  // namespace
}  // namespace cleave
