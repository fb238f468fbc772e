#include "common/net/frames/peer_limits.h"

#include <algorithm>
#include <string>

#include "common/core/error.h"

namespace cleave {

void FrameProgress::begin(SteadyTime time) {
  begun_ = true;
  start_ = last_ = time;
  longestSilence_ = {};
  bytes_ = 0;
}

void FrameProgress::arrived(std::size_t bytes, SteadyTime time) {
  if (!begun_) return;
  longestSilence_ = std::max(longestSilence_, time - last_);
  last_ = time;
  bytes_ += bytes;
  const double seconds = secondsBetween(start_, time - longestSilence_);
  const double grace = std::chrono::duration<double>(deadline_.grace).count();
  if (seconds <= grace || static_cast<double>(bytes_) >= seconds * deadline_.bytesPerSecond) return;
  throw ProtocolError(ErrorKind::link, "too-slow",
                      "a frame arrives too slowly: " + std::to_string(bytes_) + " bytes in " +
                          std::to_string(static_cast<long>(seconds)) + " s; the minimum is " +
                          std::to_string(static_cast<long>(deadline_.bytesPerSecond)) +
                          " per second",
                      "use a faster link, or set the receiver's limits lower");
}

void ControlAllowance::sends(FrameKind kind) {
  if (kind == FrameKind::tensor) tensorCrosses();
  if (kind == FrameKind::segment) segmentCrosses();
  if (kind == FrameKind::step || kind == FrameKind::bodyDone) add(kPerStep);
  if (kind == FrameKind::ping) add(1);
}

void ControlAllowance::take(SteadyTime time) {
  const double refill = kPerSecond * secondsBetween(refilled_, time);
  refilled_ = time;
  left_ = std::max(left_, std::min(kIdle, left_ + refill));
  left_ -= 1;
  if (left_ >= 0) return;
  throw ProtocolError("flood", "more short frames arrive than the transferred tensors require");
}

}  // namespace cleave
