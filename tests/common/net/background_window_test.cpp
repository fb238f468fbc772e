// The window of a background stream, on simulated links.
#include "common/net/background_window.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

using namespace cleave;

namespace {

// One direction of a link: bytes leave its queue at `rate` and arrive `latency` later. A Pong takes
// another `latency` to return.
class Way {
 public:
  Way(double rate, double latency) : rate_(rate), latency_(latency) {}

  // Sends as much as the window allows until the time `until` (seconds). Returns the bytes sent.
  double fill(BackgroundWindow& window, double until) {
    double sent = 0;
    while (true) {
      while (const std::size_t room = window.room(at(time_))) {
        const std::size_t bytes = std::min<std::size_t>(room, 64 << 10);
        window.pinged();
        send(0);
        window.sent(bytes, at(time_));
        sent += static_cast<double>(bytes);
        send(static_cast<double>(bytes));
        longest_ = std::max(longest_, free_ - time_);
      }
      if (answered_ == arrivals_.size()) {  // nothing is in flight
        const double end = secondsBetween(at(0), window.pauseEnd());
        if (end <= time_ || end > until) break;
        time_ = end;
        continue;
      }
      const double arrived = arrivals_[answered_];
      if (arrived + latency_ > until) break;
      time_ = arrived + latency_;
      ++answered_;
      const double sentAt = pingSent_[answered_ - 1];
      window.ponged(kClocks + static_cast<std::int64_t>(1e9 * (arrived - sentAt)),
                    kClocks + static_cast<std::int64_t>(1e9 * arrived), at(time_));
    }
    time_ = until;
    return sent;
  }

  // Sends an urgent tensor. Returns the seconds that it waits behind queued bytes.
  double sendUrgent(BackgroundWindow& window, double bytes) {
    window.urgentCrossed(at(time_));
    const double wait = std::max(0.0, free_ - time_);
    free_ = std::max(free_, time_) + bytes / rate_;
    return wait;
  }

  double longestQueue() const { return longest_; }
  static SteadyTime at(double seconds) {
    return SteadyTime{} +
           std::chrono::duration_cast<SteadyTime::duration>(std::chrono::duration<double>(seconds));
  }

 private:
  static constexpr std::int64_t kClocks = -123456789012345;  // offset of the clocks

  // Sends `bytes` bytes and a Ping.
  void send(double bytes) {
    pingSent_.push_back(time_);
    free_ = std::max(free_, time_) + bytes / rate_;
    arrivals_.push_back(free_ + latency_);
  }

  const double rate_, latency_;
  double time_ = 0, free_ = 0, longest_ = 0;
  std::vector<double> arrivals_, pingSent_;
  std::size_t answered_ = 0;
};

}  // namespace

TEST_CASE(
    "a background stream without competition fills its link and queues at most 0.1 s of data") {
  for (const auto& [rate, latency] : {std::pair{125e6, 0.01}, {12.5e6, 0.05}, {62.5e3, 0.001}}) {
    Way way(rate, latency);
    BackgroundWindow window;
    way.fill(window, 4);
    const double sent = way.fill(window, 8);
    CHECK(sent > 0.9 * 4 * rate);
    CHECK(way.longestQueue() < 2 * BackgroundWindow::kQuietTargetSeconds);
  }
}

TEST_CASE("beside urgent tensors a background stream uses a twentieth of the link") {
  for (const auto& [rate, latency] : {std::pair{125e6, 0.01}, {12.5e6, 0.001}, {62.5e3, 0.001}}) {
    Way way(rate, latency);
    BackgroundWindow window;
    double waited = 0;
    double sent = 0;
    // For 60 s, a tensor is sent every 100 ms; the tensors take half of the capacity.
    for (int i = 0; i < 600; ++i) {
      const double wait = way.sendUrgent(window, 0.05 * rate);
      if (i > 300) waited += wait;
      const double bytes = way.fill(window, 0.1 * (i + 1));
      if (i > 300) sent += bytes;
    }
    CAPTURE(rate);
    // On the slowest link, sending a segment takes 66 ms, and the window may be two segments.
    const double min = static_cast<double>(BackgroundWindow::kMinBytes) / rate;
    CHECK(waited / 300 < 2 * (BackgroundWindow::kSegmentSeconds + min));
    CHECK(sent > 0.01 * 30 * rate);
    CHECK(sent < 1.1 * BackgroundWindow::kShare * 30 * rate);
  }
}

TEST_CASE("a window that waits for a Pong is full, and Pongs for other Pings do not open it") {
  BackgroundWindow window;
  const SteadyTime start = Way::at(1);
  CHECK_FALSE(window.ponged(5, 7, start));
  window.pinged();
  CHECK(window.room(start) == BackgroundWindow::kMinBytes);
  window.sent(BackgroundWindow::kMinBytes, start);
  CHECK(window.room(start) == 0);
  CHECK_FALSE(window.ponged(5, 7, start));
  CHECK(window.room(start) == 0);
  CHECK(window.ponged(5, 7, start));
  CHECK(window.room(start) == 2 * BackgroundWindow::kMinBytes);
  // A peer's false numbers must not break the window.
  window.sent(4096, start);
  CHECK(window.ponged(std::int64_t{1} << 62, -(std::int64_t{1} << 62), start));
  window.sent(4096, start);
  CHECK(window.ponged(-(std::int64_t{1} << 62), std::int64_t{1} << 62, start));
  CHECK(window.room(start) >= BackgroundWindow::kMinBytes);
}
