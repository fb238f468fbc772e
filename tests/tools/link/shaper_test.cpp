// The emulated link in virtual time: rates, latency, jitter, losses, order, fairness and bounds,
// exact to the microsecond on any machine.
#include "tools/link/shaper.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <vector>

namespace cleave::link {
namespace {

using namespace std::chrono_literals;

constexpr double kMbit = 125e3;  // bytes per second
constexpr Time kLong = 1h;

double seconds(Time time) { return std::chrono::duration<double>(time).count(); }
double millis(Time time) { return seconds(time) * 1e3; }

struct Delivery {
  Time at;
  std::size_t bytes;
};

// A link whose senders have an endless or a given number of bytes, and whose receivers accept all
// bytes immediately. It advances from event to event; with `late`, it advances that much after each
// event, as on a loaded machine.
class World {
 public:
  explicit World(const Profile& profile, std::uint64_t seed = 1) : shaper(profile, seed, "up") {
    shaper.setRoundTrip(2 * profile.latency);
  }

  void open(std::uint64_t connection, std::uint64_t toSend) {
    shaper.open(connection);
    left[connection] = toSend;
  }

  void runUntil(Time end) {
    while (true) {
      feed();
      shaper.advance(now);
      feed();
      takeAll();
      const auto wake = shaper.nextWake();
      if (!wake || *wake + late > end) break;
      now = std::max(now, *wake + late);
    }
    now = end;
    shaper.advance(now);
    takeAll();
  }

  void feed() {
    for (auto& [connection, bytes] : left) {
      const std::size_t room = shaper.room(connection);
      const std::size_t some = std::min<std::uint64_t>(bytes, room);
      bytes -= some;
      if (room > 0) shaper.push(connection, some, now, bytes > 0);
      maxHeld = std::max(maxHeld, shaper.queuedBytes() + shaper.flightBytes());
    }
  }

  void takeAll() {
    for (const auto& [connection, bytes] : left) {
      const std::size_t arrived = shaper.arrived(connection, now).bytes;
      shaper.take(connection, arrived, now);
      if (arrived > 0) deliveries[connection].push_back({now, arrived});
      total[connection] += arrived;
    }
  }

  Shaper shaper;
  Time now{0};
  Time late{0};
  std::map<std::uint64_t, std::uint64_t> left;
  std::map<std::uint64_t, std::uint64_t> total;
  std::map<std::uint64_t, std::vector<Delivery>> deliveries;
  std::size_t maxHeld = 0;
};

Profile rated(double mbit, Time latency = 0ms) {
  Profile profile;
  profile.rate = mbit * kMbit;
  profile.latency = latency;
  return profile;
}

TEST_CASE("a message's transfer time is its size divided by the rate, plus the latency") {
  for (const double mbit : {1.0, 10.0, 100.0, 1000.0, 2000.0}) {
    for (const Time latency : {Time(0), Time(20ms)}) {
      World world(rated(mbit, latency));
      world.open(1, 1'000'000);
      world.runUntil(kLong);
      REQUIRE(world.total[1] == 1'000'000);
      const double expected = 1e6 / (mbit * kMbit) + seconds(latency);
      CHECK(seconds(world.deliveries[1].back().at) == Approx(expected).epsilon(1e-5));
      // The first byte does not wait for the last: at most 0.25 ms of data or one packet is sent at
      // once.
      const double first = std::max(250e-6, kPacketBytes / (mbit * kMbit)) + seconds(latency);
      CHECK(seconds(world.deliveries[1].front().at) <= first * 1.00001);
    }
  }
}

TEST_CASE("the rate does not change if the caller is late") {
  for (const double mbit : {10.0, 100.0, 1000.0, 2000.0}) {
    for (const Time late : {Time(100us), Time(3ms), Time(20ms)}) {
      World world(rated(mbit, 5ms));
      world.late = late;
      world.open(1, std::uint64_t{1} << 40);
      world.runUntil(10s);
      CHECK(static_cast<double>(world.total[1]) == Approx(10 * mbit * kMbit).epsilon(0.005));
    }
  }
}

TEST_CASE("after a pause, a sender may exceed the rate only by its burst") {
  Profile profile = rated(100);
  for (const std::size_t burst : {std::size_t{0}, std::size_t{50'000}}) {
    profile.burst = burst;
    World world(profile);
    world.open(1, 0);
    world.runUntil(10s);
    world.left[1] = 200'000;
    world.runUntil(kLong);
    const double expected = static_cast<double>(200'000 - burst) / (100 * kMbit);
    CHECK(seconds(world.deliveries[1].back().at - 10s) == Approx(expected).epsilon(1e-3));
  }
}

TEST_CASE("connections share the rate evenly, and a single one has all of it") {
  World world(rated(100, 5ms));
  for (std::uint64_t c = 1; c <= 4; ++c) world.open(c, std::uint64_t{1} << 40);
  world.open(5, 500'000);  // this connection gets its share until it is done
  world.runUntil(2s);
  CHECK(world.total[5] == 500'000);
  const double all = 2 * 100 * kMbit - 5e-3 * 100 * kMbit;
  for (std::uint64_t c = 1; c <= 4; ++c) {
    CHECK(static_cast<double>(world.total[c]) == Approx((all - 500'000) / 4).epsilon(0.002));
  }
  CHECK(seconds(world.deliveries[5].back().at) == Approx(0.2 + 5e-3).epsilon(0.05));
}

TEST_CASE("a small message waits for one chunk of each other connection, not for their queues") {
  World world(rated(100));
  world.open(1, std::uint64_t{1} << 40);
  world.open(2, 0);
  world.runUntil(1s);
  world.left[2] = 100;
  world.runUntil(2s);
  CHECK(millis(world.deliveries[2].front().at - 1s) < 0.6);
}

TEST_CASE("the link holds at most two segments and the bytes of a round trip") {
  for (const double mbit : {10.0, 200.0, 2000.0}) {
    for (const Time latency : {Time(0), Time(25ms)}) {
      World world(rated(mbit, latency));
      world.open(1, std::uint64_t{1} << 40);
      world.runUntil(2s);
      const double rate = mbit * kMbit;
      const double product = rate * seconds(2 * latency);
      CHECK(static_cast<double>(world.maxHeld) <=
            2 * static_cast<double>(segmentBytes(rate)) + product + 65536);
      // The bytes that are in flight.
      CHECK(static_cast<double>(world.maxHeld) >=
            static_cast<double>(segmentBytes(rate)) + product / 2);
    }
  }
}

TEST_CASE("a receiver that reads nothing stops the sender, and the lost time is not made up") {
  World world(rated(100, 10ms));
  world.shaper.open(1);
  std::size_t sent = 0;
  Time now{0};
  for (; now < 10s; now += 1ms) {
    const std::size_t room = world.shaper.room(1);
    world.shaper.push(1, room, now, true);
    sent += room;
    world.shaper.advance(now);
    if (world.shaper.arrived(1, now).bytes > 0) world.shaper.block(1);
  }
  const double rate = 100 * kMbit;
  CHECK(static_cast<double>(sent) <=
        2 * static_cast<double>(segmentBytes(rate)) + rate * 20e-3 + 8192);
  CHECK(world.shaper.room(1) == 0);
  // The receiver takes all bytes. From then on, the link continues at its rate.
  std::size_t taken = 0;
  const std::size_t waiting = world.shaper.arrived(1, now).bytes;
  world.shaper.take(1, waiting, now);
  for (const Time end = now + 1s; now < end; now += 1ms) {
    world.shaper.push(1, world.shaper.room(1), now, true);
    const std::size_t arrived = world.shaper.arrived(1, now).bytes;
    world.shaper.take(1, arrived, now);
    taken += arrived;
  }
  CHECK(static_cast<double>(taken) == Approx(rate * 0.99).epsilon(0.01));
}

TEST_CASE("other connections continue beside a receiver that reads nothing") {
  World world(rated(100, 10ms));
  world.open(1, std::uint64_t{1} << 40);
  world.shaper.open(2);
  world.shaper.push(2, world.shaper.room(2), Time(0), true);
  world.shaper.block(2);
  world.runUntil(1s);
  CHECK(static_cast<double>(world.total[1]) == Approx(100 * kMbit).epsilon(0.03));
}

TEST_CASE("jitter is drawn from the seed, covers its range, and keeps the order") {
  Profile profile = rated(100, 10ms);
  profile.jitter = 4ms;
  const auto delays = [&](std::uint64_t seed) {
    World world(profile, seed);
    world.open(1, 0);
    std::vector<double> result;
    for (int i = 0; i < 1000; ++i) {
      world.left[1] = 100;
      const Time start = world.now;
      world.runUntil(start + 100ms);
      result.push_back(millis(world.deliveries[1].back().at - start));
    }
    CHECK(world.total[1] == 100'000);
    return result;
  };
  const auto first = delays(7);
  CHECK(first == delays(7));
  CHECK(first != delays(8));
  CHECK(*std::min_element(first.begin(), first.end()) >= 10);
  CHECK(*std::min_element(first.begin(), first.end()) < 10.2);
  CHECK(*std::max_element(first.begin(), first.end()) <= 14.01);
  CHECK(*std::max_element(first.begin(), first.end()) > 13.8);
  double sum = 0;
  for (const double delay : first) sum += delay;
  CHECK(sum / 1000 == Approx(12).margin(0.2));

  World busy(profile);
  busy.open(1, std::uint64_t{1} << 40);
  busy.runUntil(2s);
  CHECK(static_cast<double>(busy.total[1]) == Approx(2 * 100 * kMbit).epsilon(0.01));
}

TEST_CASE("losses are drawn from the seed, with the configured frequency") {
  Profile profile = rated(1000, 1ms);
  profile.loss = 0.01;
  const auto run = [&](std::uint64_t seed) {
    World world(profile, seed);
    world.open(1, 1000 * kPacketBytes * 100);
    world.runUntil(kLong);
    CHECK(world.total[1] == 1000 * kPacketBytes * 100);
    return world.shaper.totals();
  };
  const Shaper::Totals first = run(3);
  CHECK(first.drops == run(3).drops);
  CHECK(first.drops != run(4).drops);
  CHECK(static_cast<double>(first.drops) == Approx(1000).margin(150));
  // All losses except the last are detected through later packets.
  CHECK(first.stalled >= Time(2ms) * static_cast<std::int64_t>(first.drops));
  CHECK(first.stalled <= Time(2ms) * static_cast<std::int64_t>(first.drops) + 2 * kMinTimeout);
}

TEST_CASE("a loss within a stream costs a round trip, and a loss at its end costs a timeout") {
  Profile profile = rated(100, 10ms);
  profile.loss = 0.5;
  World world(profile);
  world.open(1, 0);
  int atOnce = 0, late = 0;
  for (int i = 0; i < 200; ++i) {
    world.left[1] = 100;  // a single packet
    const Time start = world.now;
    world.runUntil(start + 1s);
    const double delay = millis(world.deliveries[1].back().at - start);
    const bool lost = delay > 100;
    CHECK(delay == Approx(lost ? 10 + 20 + 200 : 10).margin(0.02));
    ++(lost ? late : atOnce);
  }
  CHECK(atOnce > 60);
  CHECK(late > 60);

  // After a loss within a stream, no byte arrives for a round trip, and then all later bytes arrive
  // at once.
  profile.loss = 0.0005;
  World stream(profile, 2);
  stream.open(1, std::uint64_t{1} << 40);
  stream.runUntil(5s);
  const auto& deliveries = stream.deliveries[1];
  REQUIRE(stream.shaper.totals().drops > 3);
  Time longest{0};
  for (std::size_t j = 1; j < deliveries.size(); ++j) {
    longest = std::max(longest, deliveries[j].at - deliveries[j - 1].at);
  }
  CHECK(millis(longest) >= 19.9);
  CHECK(millis(longest) < 60);  // losses may overlap
}

TEST_CASE("while the link is down no byte crosses, and afterwards all do") {
  World world(rated(100, 10ms));
  world.open(1, std::uint64_t{1} << 40);
  world.runUntil(1s);
  world.shaper.setDown(true, world.now);
  const std::uint64_t before = world.total[1];
  world.runUntil(3s);
  CHECK(world.total[1] == before);
  CHECK_FALSE(world.shaper.nextWake());
  world.shaper.setDown(false, world.now);
  world.runUntil(3s + 9ms);
  CHECK(world.total[1] ==
        before);  // bytes arrive at the earliest one latency after the link is back
  world.runUntil(4s);
  const double rate = 100 * kMbit;
  // One second's bytes have crossed, and no extra bytes for the two seconds of downtime; the bytes
  // in flight are late.
  CHECK(static_cast<double>(world.total[1] - before) == Approx(rate).epsilon(0.01));
}

TEST_CASE("rate and latency may change at any byte, and the order is kept") {
  World world(rated(100, 50ms));
  world.open(1, std::uint64_t{1} << 40);
  world.runUntil(1s);
  world.shaper.setRate(10 * kMbit, world.now);
  world.runUntil(2s);
  const std::uint64_t before = world.total[1];
  world.runUntil(3s);
  CHECK(static_cast<double>(world.total[1] - before) == Approx(10 * kMbit).epsilon(0.01));
  world.shaper.setRate(1000 * kMbit, world.now);
  world.shaper.setLatency(1ms, world.now);
  world.shaper.setRoundTrip(2ms);
  world.runUntil(3s + 100ms);
  const std::uint64_t after = world.total[1];
  world.runUntil(4s);
  CHECK(static_cast<double>(world.total[1] - after) == Approx(900 * kMbit).epsilon(0.01));
}

TEST_CASE("the end of the stream follows the last byte, with the link's latency") {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{100'000}}) {
    World world(rated(10, 30ms));
    world.open(1, bytes);
    world.feed();
    while (world.left[1] > 0) world.runUntil(world.now + 1ms);
    world.shaper.finish(1, world.now);
    const double last = static_cast<double>(bytes) / (10 * kMbit) * 1e3 + 30;
    world.runUntil(Time(static_cast<std::int64_t>(last * 1e6) - 10'000));
    CHECK_FALSE(world.shaper.arrived(1, world.now).end);
    world.runUntil(world.now + 20us);
    CHECK(world.shaper.arrived(1, world.now).end);
    CHECK(world.total[1] == bytes);
  }
}

TEST_CASE("a reset drops queued bytes, and arrives after those in flight") {
  World world(rated(10, 30ms));
  world.open(1, std::uint64_t{1} << 40);
  world.runUntil(1s);
  const std::size_t waiting = world.shaper.queuedBytes();
  const std::size_t flying = world.shaper.flightBytes();
  CHECK(waiting > 30'000);
  world.left.clear();
  CHECK(world.shaper.abort(1, world.now) == waiting);
  world.shaper.advance(world.now + 5ms);  // the chunk in transmission has left
  CHECK_FALSE(world.shaper.arrived(1, world.now + 29ms).reset);
  const Shaper::Arrived last = world.shaper.arrived(1, world.now + 40ms);
  CHECK(last.reset);
  CHECK(last.bytes == flying);
}

TEST_CASE("a dead direction accepts as many bytes as its queue holds and delivers none") {
  World world(rated(10, 30ms));
  world.open(1, std::uint64_t{1} << 40);
  world.open(2, std::uint64_t{1} << 40);
  world.runUntil(1s);
  const std::uint64_t before = world.total[1], other = world.total[2];
  world.shaper.kill(1);
  world.runUntil(2s);
  CHECK(world.total[1] == before);
  CHECK(world.shaper.room(1) == 0);
  CHECK(static_cast<double>(world.total[2] - other) == Approx(10 * kMbit).epsilon(0.05));
}

TEST_CASE("a link without a rate limit is bounded only by its latency and its window") {
  Profile profile;
  profile.latency = 10ms;
  World world(profile);
  world.open(1, 3'000'000);
  world.runUntil(kLong);
  CHECK(world.total[1] == 3'000'000);
  CHECK(world.deliveries[1].back().at == Time(10ms));
  CHECK(windowBytes(0, 1h) == std::size_t{64} << 20);
}

TEST_CASE("a segment is 2 ms of data at the configured rate, clamped to 64 KiB to 1 MiB") {
  CHECK(segmentBytes(10 * kMbit) == 65536);
  CHECK(segmentBytes(1000 * kMbit) == 250'000);
  CHECK(segmentBytes(10'000 * kMbit) == 1 << 20);
  CHECK(segmentBytes(0) == 1 << 20);
}

}  // namespace
}  // namespace cleave::link
