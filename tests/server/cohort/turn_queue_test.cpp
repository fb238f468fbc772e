#include "server/cohort/turn_queue.h"

#include <catch2/catch.hpp>

namespace cleave {
namespace {

// Those of three members that may take a turn now.
std::vector<std::uint32_t> next(const TurnQueue& queue, bool hasWaited) {
  std::vector<std::uint32_t> members;
  for (const std::uint32_t each : queue.waiting) {
    if (queue.mayTake(each, 3, hasWaited)) members.push_back(each);
  }
  return members;
}

TEST_CASE("the member whose turn it is takes it at once; another one when all have waited") {
  using Members = std::vector<std::uint32_t>;
  for (const bool hasWaited : {false, true}) {
    CHECK(next({0, {0, 1, 2}}, hasWaited) == Members{0});
    CHECK(next({5, {0, 2}}, hasWaited) == Members{2});
  }
  CHECK(next({4, {0, 2}}, false).empty());
  CHECK(next({4, {0, 2}}, true) == Members{2});
  CHECK(next({4, {0}}, true) == Members{0});
}

TEST_CASE("a member whose turns are over waits for those of the others") {
  using Members = std::vector<std::uint32_t>;
  for (const bool hasWaited : {false, true}) {
    CHECK(next({4, {0}, 6}, hasWaited).empty());
    CHECK(next({4, {0, 2}, 6}, hasWaited) == (hasWaited ? Members{2} : Members{}));
    CHECK(next({6, {0, 2}, 6}, hasWaited) == Members{0, 2});
  }
}

}  // namespace
}  // namespace cleave
