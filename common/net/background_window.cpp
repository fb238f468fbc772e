#include "common/net/background_window.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <utility>

namespace cleave {
namespace {

constexpr double kMaxBytes = 64 << 20;
constexpr double kMinRatio = 1e-12;          // seconds per byte: no link is faster
constexpr double kLongestPauseSeconds = 10;  // regardless of the delay in a Pong

SteadyTime::duration seconds(double count) {
  return std::chrono::duration_cast<SteadyTime::duration>(std::chrono::duration<double>(count));
}

}  // namespace

std::size_t BackgroundWindow::room(SteadyTime time) const {
  if (!isQuiet(time) && (underWay_ > 0 || time < pausesUntil_)) return 0;
  const auto window = static_cast<std::size_t>(window_);
  const std::size_t rest = window > underWay_ ? window - underWay_ : 0;
  return rest < kMinBytes ? 0 : rest;
}

SteadyTime BackgroundWindow::pauseEnd() const {
  if (lastUrgent_ == SteadyTime::min()) return lastUrgent_;
  return std::min(pausesUntil_, lastUrgent_ + seconds(kQuietSeconds));
}

bool BackgroundWindow::isQuiet(SteadyTime time) const {
  return lastUrgent_ == SteadyTime::min() || time >= lastUrgent_ + seconds(kQuietSeconds);
}

void BackgroundWindow::sent(std::size_t bytes, SteadyTime time) {
  pings_.push_back(bytes);
  underWay_ += bytes;
  const double crossing = secondsPerByte() * static_cast<double>(bytes);
  pausesUntil_ = time + seconds(std::min(crossing / kShare, kLongestPauseSeconds));
}

bool BackgroundWindow::ponged(std::int64_t forward, std::int64_t arrived, SteadyTime time) {
  const double added = addedDelay(forward, time);
  const double between = 1e-9 * (static_cast<double>(arrived) -
                                 static_cast<double>(std::exchange(arrivedBefore_, arrived)));
  if (pings_.empty()) return false;  // an unsolicited Pong
  const std::size_t bytes = pings_.front();
  pings_.pop_front();
  if (bytes == 0) return false;
  assert(bytes <= underWay_);
  underWay_ -= bytes;
  ratios_.push_back(std::max(between, 0.0) / static_cast<double>(bytes));
  if (ratios_.size() > kRatios) ratios_.pop_front();
  if (isQuiet(time)) {
    // While the stream adds no delay, the window grows by the bytes that arrive. It grows more
    // slowly near the target, and shrinks above the target, by at most half per round trip.
    const double gain = std::clamp((kQuietTargetSeconds - added) / kQuietTargetSeconds, -0.5, 1.0);
    window_ += gain * static_cast<double>(bytes);
  } else {
    window_ = std::min(2 * window_, kSegmentSeconds / std::max(secondsPerByte(), kMinRatio));
  }
  window_ = std::clamp(window_, double{kMinBytes}, kMaxBytes);
  return true;
}

double BackgroundWindow::secondsPerByte() const {
  return ratios_.empty() ? 0 : *std::min_element(ratios_.begin(), ratios_.end());
}

double BackgroundWindow::addedDelay(std::int64_t forward, SteadyTime time) {
  if (!minuteBegan_ || time - *minuteBegan_ > std::chrono::minutes(1)) {
    minBefore_ = std::exchange(min_, kNone);
    minuteBegan_ = time;
  }
  min_ = std::min(min_, forward);
  return 1e-9 * (static_cast<double>(forward) - static_cast<double>(std::min(min_, minBefore_)));
}

}  // namespace cleave
