#include "server/cohort/lateness.h"

#include <catch2/catch.hpp>
#include <chrono>

namespace cleave {
namespace {

TEST_CASE("a member is late from the first part of a sum to its own") {
  const auto at = [](int seconds) { return SteadyTime(std::chrono::seconds(seconds)); };
  Lateness lateness(3);
  CHECK_FALSE(lateness.isAwaited(0));
  CHECK(lateness.seconds(0, at(5)) == 0);
  lateness.sent(0, at(10));
  lateness.sent(1, at(12));
  CHECK(lateness.isAwaited(2));
  CHECK_FALSE(lateness.isAwaited(1));
  CHECK(lateness.seconds(2, at(13)) == 3);
  lateness.sent(2, at(15));
  CHECK_FALSE(lateness.isAwaited(2));
  lateness.sent(2, at(20));
  CHECK(lateness.isAwaited(0));
  lateness.sent(0, at(21));
  lateness.sent(1, at(21));
  CHECK(lateness.seconds(0, at(30)) == 1);
  CHECK(lateness.seconds(1, at(30)) == 3);
  CHECK(lateness.seconds(2, at(30)) == 5);
}

}  // namespace
}  // namespace cleave
