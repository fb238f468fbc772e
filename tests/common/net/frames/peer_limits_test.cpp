#include "common/net/frames/peer_limits.h"

#include <catch2/catch.hpp>

#include "tests/support/error_code.h"

using namespace cleave;
using namespace std::chrono_literals;

namespace {

// Returns the error code if `bytes` bytes of a frame arrive every `gap` for a minute.
std::string dribble(std::size_t bytes, std::chrono::milliseconds gap) {
  FrameProgress progress{FrameDeadline{}};
  SteadyTime time{};
  progress.begin(time);
  const SteadyTime end = time + 60s;
  return errorCode([&] {
    while (time < end) progress.arrived(bytes, time += gap);
  });
}

}  // namespace

TEST_CASE("a frame must make progress after its fifth second") {
  CHECK(dribble(1, 1s) == "too-slow");
  CHECK(dribble(1000, 100ms) == "too-slow");  // 10 kB/s
  CHECK(dribble(1700, 100ms).empty());        // 17 kB/s
  FrameProgress progress{FrameDeadline{}};
  const SteadyTime start{};
  progress.begin(start);
  for (int i = 1; i <= 5; ++i) progress.arrived(1, start + i * 1s);
  progress.end();
  progress.arrived(1, start + 100s);  // between frames
  progress.begin(start + 100s);
  progress.arrived(1, start + 101s);
}

TEST_CASE("one pause of the link within a frame is tolerated, but not a second one") {
  FrameProgress progress{FrameDeadline{}};
  const SteadyTime start{};
  progress.begin(start);
  progress.arrived(100, start + 30s);
  progress.arrived(100, start + 31s);
  CHECK(errorCode([&] { progress.arrived(100, start + 60s); }) == "too-slow");
}

TEST_CASE("many control frames are accepted beside tensors, but only a few without tensors") {
  const SteadyTime start{};
  ControlAllowance allowance(start);
  int taken = 0;
  const auto takeAll = [&](SteadyTime time) {
    taken = 0;
    while (errorCode([&] { allowance.take(time); }).empty()) ++taken;
    return taken;
  };
  CHECK(takeAll(start) == 256);
  CHECK(takeAll(start + 1s) == 9);  // the refused frame has been deducted too
  allowance.tensorCrosses();
  CHECK(takeAll(start + 1s) == 2);
  CHECK(takeAll(start + 1h) == 256);
  CHECK(errorCode([&] { allowance.take(start + 1h); }) == "flood");
}

TEST_CASE("Steps, BodyDones and Pings allow the peer its answers, and answers allow nothing") {
  const SteadyTime start{};
  ControlAllowance allowance(start);
  const auto takeAll = [&] {
    int taken = 0;
    while (errorCode([&] { allowance.take(start); }).empty()) ++taken;
    return taken;
  };
  CHECK(takeAll() == 256);
  for (const FrameKind kind : {FrameKind::step, FrameKind::bodyDone}) {
    allowance.sends(kind);
    CHECK(takeAll() == 2);  // the refused frame has been deducted too
  }
  for (int ping = 0; ping < 3; ++ping) allowance.sends(FrameKind::ping);
  CHECK(takeAll() == 2);
  for (const FrameKind kind : {FrameKind::pong, FrameKind::stepOk, FrameKind::received}) {
    for (int frame = 0; frame < 10; ++frame) allowance.sends(kind);
  }
  CHECK(takeAll() == 0);
}
