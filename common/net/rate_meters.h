// What a connection measures of its link's speed. Added to on one thread, read on any.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/core/clock.h"

namespace cleave {

// How fast the link is: bytes by the seconds that they took, over about the last half second of
// such. At the sender: that the socket took to accept them; it accepts little ahead
// (TCP_NOTSENT_LOWAT), so that this is the rate of the whole way to the receiver, relays included,
// while the kernel's own estimate ends at the next machine. What buffers on the way take at once
// makes it too high, more so for short bursts. At the receiver: from a frame's header to its last
// byte; what waits in the kernel makes it too high. The lesser of the two is nearest.
class RateMeter {
 public:
  void passed(std::size_t bytes, double seconds) {
    bytes_ += static_cast<double>(bytes);
    seconds_ += seconds;
    if (seconds_ <= 0 || (bytes_ < kLeastBytes && seconds_ < kLeastSeconds)) return;
    rate_.store(bytes_ / seconds_, std::memory_order_relaxed);
    if (seconds_ < kMostSeconds && bytes_ < kMostBytes) return;
    bytes_ /= 2;
    seconds_ /= 2;
  }

  // Bytes a second; 0: too little passed to say.
  double rate() const { return rate_.load(std::memory_order_relaxed); }

 private:
  static constexpr double kLeastBytes = 1 << 20;
  static constexpr double kLeastSeconds = 0.05;
  static constexpr double kMostBytes = 64 << 20;
  static constexpr double kMostSeconds = 0.5;

  double bytes_ = 0;
  double seconds_ = 0;
  std::atomic<double> rate_ = 0;
};

// The most bytes of a window of 100 ms, by its length.
class PeakMeter {
 public:
  void passed(std::size_t bytes, SteadyTime time = now()) {
    const double seconds = std::chrono::duration<double>(time.time_since_epoch()).count();
    const auto window = static_cast<std::int64_t>(seconds / kWindow);
    if (window != window_) bytes_ = 0;
    window_ = window;
    bytes_ += static_cast<double>(bytes);
    peak_.store(std::max(peak(), bytes_ / kWindow), std::memory_order_relaxed);
  }

  double peak() const { return peak_.load(std::memory_order_relaxed); }  // bytes a second

 private:
  static constexpr double kWindow = 0.1;

  std::int64_t window_ = -1;
  double bytes_ = 0;
  std::atomic<double> peak_ = 0;
};

}  // namespace cleave
