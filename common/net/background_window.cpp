#include "common/net/background_window.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace cleave {
namespace {

constexpr double kMostBytes = 64 << 20;

}  // namespace

std::size_t BackgroundWindow::room() const {
  const auto window = static_cast<std::size_t>(window_);
  const std::size_t rest = window > underWay_ ? window - underWay_ : 0;
  return rest < kLeastBytes ? 0 : rest;
}

void BackgroundWindow::sent(std::size_t bytes) {
  pings_.push_back(bytes);
  underWay_ += bytes;
}

// The window grows by the bytes that arrive while the stream adds no delay, more slowly near the
// target, and shrinks above it, by at most half per round trip.
bool BackgroundWindow::ponged(std::int64_t forward, SteadyTime time) {
  const double added = addedDelay(forward, time);
  if (pings_.empty()) return false;  // an unsolicited Pong
  const std::size_t bytes = pings_.front();
  pings_.pop_front();
  if (bytes == 0) return false;
  underWay_ -= bytes;
  const bool isQuiet = !lastUrgent_ || secondsBetween(*lastUrgent_, time) > kQuietSeconds;
  const double target = isQuiet ? kQuietTargetSeconds : kTargetSeconds;
  const double gain = std::clamp((target - added) / target, -0.5, 1.0);
  window_ =
      std::clamp(window_ + gain * static_cast<double>(bytes), double{kLeastBytes}, kMostBytes);
  return true;
}

double BackgroundWindow::addedDelay(std::int64_t forward, SteadyTime time) {
  if (!minuteBegan_ || time - *minuteBegan_ > std::chrono::minutes(1)) {
    leastBefore_ = std::exchange(least_, kNone);
    minuteBegan_ = time;
  }
  least_ = std::min(least_, forward);
  return 1e-9 *
         (static_cast<double>(forward) - static_cast<double>(std::min(least_, leastBefore_)));
}

}  // namespace cleave
