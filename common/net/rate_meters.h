// Measures the speed of a connection's link. Updated on one thread, read on any.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/core/clock.h"

namespace cleave {

// Link throughput: bytes divided by the seconds they took, over about the last half second of
// transfer time. At the sender, the seconds run until the socket has accepted the bytes. The socket
// buffers little (TCP_NOTSENT_LOWAT), so this is the rate of the whole path to the receiver, relays
// included. The kernel's own estimate covers only the path to the next machine. Buffers on the path
// make the rate too high, especially for short bursts. At the receiver, the seconds run from a
// frame's header to its last byte; bytes waiting in the kernel make the rate too high. The smaller
// of the two rates is the more accurate.
class RateMeter {
 public:
  void passed(std::size_t bytes, double seconds) {
    bytes_ += static_cast<double>(bytes);
    seconds_ += seconds;
    if (seconds_ <= 0 || (bytes_ < kMinBytes && seconds_ < kMinSeconds)) return;
    rate_.store(bytes_ / seconds_, std::memory_order_relaxed);
    if (seconds_ < kMaxSeconds && bytes_ < kMaxBytes) return;
    bytes_ /= 2;
    seconds_ /= 2;
  }

  // Bytes per second; 0: not enough data yet.
  double rate() const { return rate_.load(std::memory_order_relaxed); }

 private:
  static constexpr double kMinBytes = 1 << 20;
  static constexpr double kMinSeconds = 0.05;
  static constexpr double kMaxBytes = 64 << 20;
  static constexpr double kMaxSeconds = 0.5;

  double bytes_ = 0;
  double seconds_ = 0;
  std::atomic<double> rate_ = 0;
};

// The highest throughput over a window of 100 ms.
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

  double peak() const { return peak_.load(std::memory_order_relaxed); }  // bytes per second

 private:
  static constexpr double kWindow = 0.1;

  std::int64_t window_ = -1;
  double bytes_ = 0;
  std::atomic<double> peak_ = 0;
};

}  // namespace cleave
