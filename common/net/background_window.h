// How much of a background stream may be on its way at a time: as much as the link carries without
// making what is urgent wait behind it. After LEDBAT (RFC 6817): what the stream adds to the delay
// of its way is held to a target. The delay is measured by a Ping behind each segment, so that what
// waits in relays and routers counts as well as what waits in our kernel. io thread only.
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
  // The least that a segment has, but for a stream's last one.
  static constexpr std::size_t kLeastBytes = 4096;
  // The delay that the stream may add while urgent tensors cross, and once none has crossed for
  // kQuietSeconds.
  static constexpr double kTargetSeconds = 0.005;
  static constexpr double kQuietTargetSeconds = 0.1;
  static constexpr double kQuietSeconds = 1;

  // An urgent tensor, or a part of one, has been sent or received.
  void urgentCrossed(SteadyTime time) { lastUrgent_ = time; }
  // The bytes that the next segment may have; 0: wait for a Pong.
  std::size_t room() const;
  // A segment was sent, and a Ping behind it.
  void sent(std::size_t bytes);
  // A Ping was sent that follows none.
  void pinged() { pings_.push_back(0); }
  // A Pong came. `forward`: nanoseconds from Ping to its arrival at the peer, by two clocks that
  // need not agree. Returns whether its Ping followed a segment.
  bool ponged(std::int64_t forward, SteadyTime time);

 private:
  double addedDelay(std::int64_t forward, SteadyTime time);

  std::deque<std::size_t> pings_;  // not yet answered: the bytes of the segment before each
  std::size_t underWay_ = 0;
  double window_ = kLeastBytes;
  std::optional<SteadyTime> lastUrgent_;
  // The least `forward` of this minute and of the one before: clocks drift, and routes change.
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  std::int64_t least_ = kNone, leastBefore_ = kNone;
  std::optional<SteadyTime> minuteBegan_;
};

}  // namespace cleave
