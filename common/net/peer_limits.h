// What a peer is held to once it is connected: that a frame it has begun comes on, and that it
// sends no flood of short frames. io thread only.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>

#include "common/core/clock.h"

namespace cleave {

// A frame that has been arriving for longer than `grace` must have come at `bytesASecond` or more.
struct FrameDeadline {
  std::chrono::milliseconds grace{5000};
  double bytesASecond = 16 << 10;
};

// Watches a frame arrive. Its longest silence does not count: a link may fall silent for a while,
// which is the business of pings; a peer that sends a byte now and then is found out by the second
// one.
class FrameProgress {
 public:
  explicit FrameProgress(FrameDeadline deadline) : deadline_(deadline) {}

  void begin(SteadyTime time);
  // So many bytes more of the frame have come. Throws ProtocolError "too-slow".
  void arrived(std::size_t bytes, SteadyTime time);
  void end() { begun_ = false; }
  bool isMidFrame() const { return begun_; }

 private:
  const FrameDeadline deadline_;
  bool begun_ = false;
  SteadyTime start_, last_;
  SteadyTime::duration longestSilence_{};
  std::size_t bytes_ = 0;
};

// A correct peer sends a few control frames for every tensor that crosses, either way, one for
// every long segment, and a Ping now and then. A short segment costs as much to deal with as a
// control frame, and counts as one.
class ControlAllowance {
 public:
  static constexpr double kIdle = 256;    // that an idle connection may send at once
  static constexpr double kASecond = 10;  // up to kIdle again
  static constexpr double kATensor = 3;
  static constexpr double kALongSegment = 1;
  static constexpr double kMost = 16384;  // that tensors can have saved up
  static constexpr std::size_t kShortSegmentBytes = 4096;

  explicit ControlAllowance(SteadyTime start) : refilled_(start) {}
  void tensorCrosses() { left_ = std::min(kMost, left_ + kATensor); }
  void segmentCrosses() { left_ = std::min(kMost, left_ + kALongSegment); }
  // A control frame or a short segment has come. Throws ProtocolError "flood".
  void take(SteadyTime time);

 private:
  double left_ = kIdle;
  SteadyTime refilled_;
};

}  // namespace cleave
