// A throttle limits the total rate of several connections. Tested in virtual time and over sockets.
#include "common/net/throttle.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "tests/support/network/loopback.h"

namespace cleave {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kChunk = 100'000;
constexpr double kRate = 1e6;

// Returns the seconds in which `takers` connections that always have data move `chunks` chunks in
// total.
double secondsFor(Throttle& throttle, std::size_t takers, std::size_t chunks) {
  const SteadyTime start = now();
  std::vector<SteadyTime> free(takers, start);
  SteadyTime last = start;
  for (std::size_t j = 0; j < chunks; ++j) {
    SteadyTime& next = *std::min_element(free.begin(), free.end());
    next = throttle.take(kChunk, next);
    last = std::max(last, next);
  }
  return secondsBetween(start, last);
}

}  // namespace

TEST_CASE("connections together move as many bytes per second as their throttle allows") {
  for (const std::size_t takers : {1, 2, 7}) {
    Throttle throttle(kRate);
    const double expected = 100 * kChunk / kRate;
    CHECK(secondsFor(throttle, takers, 100) == Approx(expected).epsilon(0.1));
  }
}

TEST_CASE("unused rate is lost, except for a short burst") {
  Throttle throttle(kRate);
  const SteadyTime start = now();
  throttle.take(kChunk, start);
  const SteadyTime later = start + 1h;
  CHECK(throttle.take(kChunk, later) == later - Throttle::kBurst + 100ms);
}

TEST_CASE("a rate can be changed, and can be unlimited") {
  Throttle throttle(0);
  const SteadyTime start = now();
  CHECK(throttle.take(std::size_t{1} << 40, start) == start);
  throttle.setRate(kRate);
  CHECK(throttle.take(kChunk, start) == start - Throttle::kBurst + 100ms);
  throttle.setRate(0);
  CHECK(throttle.take(kChunk, start) == start);
}

TEST_CASE("two connections with one throttle, one sending and one receiving, share its rate") {
  constexpr double kShared = 20e6;
  constexpr std::size_t kBytes = 5'000'000;  // per connection
  // An attempt may take longer on a loaded machine, but never less time.
  bool isNear = false;
  for (int attempt = 0; attempt < 20 && !isNear; ++attempt) {
    std::array<Pair, 2> pairs;
    const auto throttle = std::make_shared<Throttle>(kShared);
    for (Pair& pair : pairs) pair.b.throttleBy(throttle);  // the server's side
    pairs[0].send(pairs[0].a, "up", randomBytes(kBytes, 1));
    pairs[1].send(pairs[1].b, "down", randomBytes(kBytes, 2));
    const SteadyTime start = now();
    for (Pair& pair : pairs) pair.startBoth();
    bool done = false;
    while (!done) {
      for (Pair& pair : pairs) pair.settle();
      done = pairs[0].sinkB.tensors.size() == 1 && pairs[1].sinkA.tensors.size() == 1;
    }
    const double seconds = secondsSince(start);
    for (Pair& pair : pairs) {
      pair.b.sayBye("done");
      pair.finish();
    }
    const double expected = 2 * kBytes / kShared;
    CHECK(
        seconds >
        0.85 *
            expected);  // a chunk is moved before its waiting time, so the last wait does not count
    isNear = seconds < 1.1 * expected;
  }
  CHECK(isNear);
}

TEST_CASE("a connection that ends while waiting for its throttle reports the reason immediately") {
  Pair pair;
  pair.b.throttleBy(std::make_shared<Throttle>(1000));  // the first segment would take a minute
  pair.send(pair.a, "up", randomBytes(std::size_t{1} << 20, 1));
  pair.send(pair.b, "down", randomBytes(std::size_t{1} << 20, 1));
  pair.startBoth();
  pair.runUntil([&] { return pair.b.bytes().tensorReceived > 0 && pair.b.bytes().tensorSent > 0; });
  pair.settle();
  const SteadyTime start = now();
  pair.b.fail(std::make_exception_ptr(RunError("shutting-down", "the server ends")));
  pair.finish();
  CHECK(pair.outcomeA.code == "shutting-down");
  CHECK(pair.outcomeB.code == "shutting-down");
  CHECK(secondsSince(start) < 0.9);
}

}  // namespace cleave
