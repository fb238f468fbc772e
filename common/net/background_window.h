// Limits how many bytes of a background stream are in flight. While urgent tensors cross, one short
// segment is in flight at a time, and the stream then pauses, so that it uses kShare of the link.
// Otherwise it keeps the one-way delay that it adds at a target, as LEDBAT does (RFC 6817). A Ping
// before and one after each segment measure both, so that relays and routers count as well as our
// kernel: the delay, and how long the segment occupies the link. io thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>

#include "common/core/clock.h"

namespace cleave {

class BackgroundWindow {
 public:
  // Minimum size of a segment, except for a stream's last one.
  static constexpr std::size_t kMinBytes = 4096;
  // While urgent tensors cross: the seconds that a segment occupies the link, and the share of the
  // link's time that the stream uses.
  static constexpr double kSegmentSeconds = 0.005;
  static constexpr double kShare = 0.05;
  // Once no urgent tensor has crossed for kQuietSeconds: the delay that the stream adds.
  static constexpr double kQuietSeconds = 1;
  static constexpr double kQuietTargetSeconds = 0.1;

  // Reports that an urgent tensor, or a part of one, was sent or received.
  void urgentCrossed(SteadyTime time) { lastUrgent_ = time; }
  // Maximum bytes of the next segment; 0: wait for a Pong, or until pauseEnd().
  std::size_t room(SteadyTime time) const;
  // When the pause after a segment ends if no urgent tensor crosses meanwhile.
  SteadyTime pauseEnd() const;
  // Reports that a segment, which began at `time`, and then a Ping were sent.
  void sent(std::size_t bytes, SteadyTime time);
  // Reports that a Ping was sent that does not follow a segment.
  void pinged() { pings_.push_back(0); }
  // Reports a Pong. `arrived`: nanoseconds at which its Ping arrived, by the peer's clock;
  // `forward`: those since it was sent by our clock, which need not agree with the peer's. Returns
  // whether its Ping followed a segment.
  bool ponged(std::int64_t forward, std::int64_t arrived, SteadyTime time);

 private:
  bool isQuiet(SteadyTime time) const;
  double addedDelay(std::int64_t forward, SteadyTime time);
  double secondsPerByte() const;

  std::deque<std::size_t> pings_;  // unanswered; bytes of the segment before each, 0: none
  std::size_t underWay_ = 0;
  // Of the last kRatios segments: the time between the arrivals of the Pings around each, per byte.
  // The minimum is closest to the link's rate, since other traffic makes it longer.
  static constexpr std::size_t kRatios = 16;
  std::deque<double> ratios_;
  std::int64_t arrivedBefore_ = 0;  // of the latest Pong
  double window_ = kMinBytes;
  SteadyTime lastUrgent_ = SteadyTime::min();
  SteadyTime pausesUntil_ = SteadyTime::min();
  // Minimum `forward` of this minute and of the previous one: clocks drift, and routes change.
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  std::int64_t min_ = kNone, minBefore_ = kNone;
  std::optional<SteadyTime> minuteBegan_;
};

}  // namespace cleave
