// Limits on a connected peer: a frame that has started must keep arriving, and short frames must
// not flood. io thread only.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>

#include "common/core/clock.h"
#include "common/net/frames/frame.h"

namespace cleave {

// A frame that has been arriving for more than `grace` must average at least `bytesPerSecond`.
struct FrameDeadline {
  std::chrono::milliseconds grace{5000};
  double bytesPerSecond = 16 << 10;
};

// Measures how fast a frame arrives. The longest gap between reads is excluded: a link may stall
// briefly, and a lost peer is detected by Pings anyway. A peer that pauses repeatedly between
// single bytes is detected at its second pause.
class FrameProgress {
 public:
  explicit FrameProgress(FrameDeadline deadline) : deadline_(deadline) {}

  void begin(SteadyTime time);
  // Reports that `bytes` more of the frame arrived. Throws ProtocolError "too-slow".
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

// Limits the rate of control frames. A correct peer sends a few per tensor in either direction, two
// per long segment, three per step, an answer to each Ping, and an occasional Ping. A short segment
// counts as a control frame, because it costs as much to process.
class ControlAllowance {
 public:
  static constexpr double kIdle = 256;      // frames that an idle connection may send at once
  static constexpr double kPerSecond = 10;  // refilled per second, up to kIdle
  static constexpr double kPerTensor = 3;
  static constexpr double kPerLongSegment = 2;
  // Per Step or BodyDone that this side sends. The peer answers a Step with a StepOk and perhaps a
  // Saved, and then sends the next BodyDone. It answers a BodyDone with a Step, a Ping and perhaps
  // a Fetch.
  static constexpr double kPerStep = 3;
  static constexpr double kMax = 16384;  // maximum that tensors can accumulate
  static constexpr std::size_t kShortSegmentBytes = 4096;

  explicit ControlAllowance(SteadyTime start) : refilled_(start) {}
  void tensorCrosses() { add(kPerTensor); }
  void segmentCrosses() { add(kPerLongSegment); }
  // Reports that this side sends a frame. Only frames that the peer cannot cause at will count.
  void sends(FrameKind kind);
  // Reports that a control frame or a short segment arrived. Throws ProtocolError "flood".
  void take(SteadyTime time);

 private:
  void add(double frames) { left_ = std::min(kMax, left_ + frames); }

  double left_ = kIdle;
  SteadyTime refilled_;
};

}  // namespace cleave
