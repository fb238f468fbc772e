// Limits how many bytes of a background stream are in flight: as many as the link carries without
// delaying urgent tensors. Based on LEDBAT (RFC 6817): keeps the one-way delay that the stream adds
// at a target. A Ping after each segment measures the delay, so queues in relays and routers count
// as well as those in our kernel. io thread only.
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
  static constexpr std::size_t kLeastBytes = 4096;
  // Target for the delay that the stream adds: while urgent tensors cross, and once none has
  // crossed for kQuietSeconds.
  static constexpr double kTargetSeconds = 0.005;
  static constexpr double kQuietTargetSeconds = 0.1;
  static constexpr double kQuietSeconds = 1;

  // Reports that an urgent tensor, or a part of one, was sent or received.
  void urgentCrossed(SteadyTime time) { lastUrgent_ = time; }
  // Maximum bytes of the next segment; 0: wait for a Pong.
  std::size_t room() const;
  // Reports that a segment was sent, followed by a Ping.
  void sent(std::size_t bytes);
  // Reports that a Ping was sent that does not follow a segment.
  void pinged() { pings_.push_back(0); }
  // Reports a Pong. `forward`: nanoseconds from sending the Ping to its arrival at the peer, by two
  // clocks that need not agree. Returns whether its Ping followed a segment.
  bool ponged(std::int64_t forward, SteadyTime time);

 private:
  double addedDelay(std::int64_t forward, SteadyTime time);

  std::deque<std::size_t> pings_;  // unanswered; bytes of the segment before each, 0: none
  std::size_t underWay_ = 0;
  double window_ = kLeastBytes;
  std::optional<SteadyTime> lastUrgent_;
  // Minimum `forward` of this minute and of the previous one: clocks drift, and routes change.
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  std::int64_t least_ = kNone, leastBefore_ = kNone;
  std::optional<SteadyTime> minuteBegan_;
};

}  // namespace cleave
