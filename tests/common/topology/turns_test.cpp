#include "common/topology/turns.h"

#include <catch2/catch.hpp>

namespace cleave {
namespace {

TEST_CASE("the next turn of each member comes in the order of the members") {
  CHECK(turnFrom(0, 0, 3) == 0);
  CHECK(turnFrom(0, 2, 3) == 2);
  CHECK(turnFrom(4, 1, 3) == 4);
  CHECK(turnFrom(4, 0, 3) == 6);
  CHECK(turnFrom(7, 0, 1) == 7);
}

TEST_CASE("a member that stays away loses its turn") {
  Roster roster;
  roster.train = {5, 6, 7};
  std::uint64_t step = 1;
  for (const std::uint32_t member : {0u, 2u, 0u, 1u, 1u}) {
    roster.attendance.push_back({step++, 0, {member}});
  }
  CHECK(turnsOf(roster) == std::vector<std::uint64_t>{0, 2, 3, 4, 7});
  CHECK(turnsOf(Roster{{5, 6, 7}, {}, {}}).empty());
}

TEST_CASE("after the last round, a member has turns without epochs") {
  const TurnLength length{6, 2};
  CHECK(length.rounds() == 3);
  std::vector<std::uint64_t> before, epochs;
  for (const std::uint64_t turn : {0, 2, 4, 8, 9, 300}) {
    before.push_back(length.epochsBefore(turn, 3));
    epochs.push_back(length.epochsOf(turn, 3));
  }
  CHECK(before == std::vector<std::uint64_t>{0, 0, 2, 4, 6, 6});
  CHECK(epochs == std::vector<std::uint64_t>{2, 2, 2, 2, 0, 0});
}

}  // namespace
}  // namespace cleave
