// The time without progress, on which all waits for a peer depend.
#include "common/core/progress_clock.h"

#include <catch2/catch.hpp>

using namespace cleave;
using namespace std::chrono_literals;

namespace {
const SteadyTime start{};
}

TEST_CASE("only a count that grows restarts the time") {
  ProgressClock clock(start);
  CHECK(clock.secondsWithout(0, start + 5s) == 5);
  CHECK(clock.secondsWithout(3, start + 6s) == 0);
  CHECK(clock.secondsWithout(3, start + 8s) == 2);
  CHECK(clock.secondsWithout(2, start + 9s) == 3);  // a lower count is no progress
  CHECK(clock.secondsWithout(3, start + 9s) == 3);
  CHECK(clock.secondsWithout(4, start + 10s) == 0);
}

TEST_CASE("time in which the peer owes nothing does not count") {
  ProgressClock clock(start);
  CHECK(clock.secondsWithout(1, start) == 0);
  clock.exclude(4);
  CHECK(clock.secondsWithout(1, start + 5s) == 1);
  clock.exclude(-1);  // nothing to exclude
  CHECK(clock.secondsWithout(1, start + 5s) == 1);
}
