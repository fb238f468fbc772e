// Limits how many bytes of a background stream are in flight. While urgent tensors cross, only one
// short segment is in flight at a time. After each segment the stream pauses, so that it uses the
// fraction kShare of the link. Otherwise the stream keeps the one-way delay that it adds close to a
// target value, as LEDBAT does (RFC 6817). Pings before and after each segment measure that delay,
// and how long the segment occupies the link. These measurements include relays and routers, not
// only our kernel. io thread only.
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
  // While urgent tensors cross: how long a segment occupies the link, in seconds, and the fraction
  // of the link's time that the stream uses.
  static constexpr double kSegmentSeconds = 0.005;
  static constexpr double kShare = 0.05;
  // After kQuietSeconds without an urgent tensor: the target for the delay that the stream adds.
  static constexpr double kQuietSeconds = 1;
  static constexpr double kQuietTargetSeconds = 0.1;

  // Reports that an urgent tensor, or a part of one, was sent or received.
  void urgentCrossed(SteadyTime time) { lastUrgent_ = time; }
  // Maximum bytes of the next segment; 0: wait for a Pong, or until pauseEnd().
  std::size_t room(SteadyTime time) const;
  // The time at which the pause after a segment ends, if no urgent tensor crosses meanwhile.
  SteadyTime pauseEnd() const;
  // Reports that a segment was sent, starting at `time`, and then a Ping.
  void sent(std::size_t bytes, SteadyTime time);
  // Reports a sent Ping that does not follow a segment.
  void pinged() { pings_.push_back(0); }
  // Reports a Pong. `arrived`: when its Ping arrived, in nanoseconds of the peer's clock.
  // `forward`: `arrived` minus the time of our clock at which the Ping was sent; the clocks need
  // not agree. Returns whether the Ping followed a segment.
  bool ponged(std::int64_t forward, std::int64_t arrived, SteadyTime time);

 private:
  bool isQuiet(SteadyTime time) const;
  double addedDelay(std::int64_t forward, SteadyTime time);
  double secondsPerByte() const;

  // For each unanswered Ping, the bytes of the segment before it; 0: none.
  std::deque<std::size_t> pings_;
  std::size_t underWay_ = 0;
  // For each of the last kRatios segments, the time between the arrivals of the Pings around it,
  // per byte. Other traffic increases this time, so the minimum is closest to the link's rate.
  static constexpr std::size_t kRatios = 16;
  std::deque<double> ratios_;
  std::int64_t arrivedBefore_ = 0;  // `arrived` of the latest Pong
  double window_ = kMinBytes;
  SteadyTime lastUrgent_ = SteadyTime::min();
  SteadyTime pausesUntil_ = SteadyTime::min();
  // Minimum `forward` in this minute and in the previous one. Older values are dropped, because
  // clocks drift and routes change.
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  std::int64_t min_ = kNone, minBefore_ = kNone;
  std::optional<SteadyTime> minuteBegan_;
};

}  // namespace cleave
