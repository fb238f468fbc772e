// Limits the total throughput of several connections, both directions together. Above the limit,
// their reads and writes wait; to the peers, this looks like a slow link. io thread only.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>

#include "common/core/clock.h"

namespace cleave {

class Throttle {
 public:
  // Capacity unused for longer than this is lost, which limits bursts.
  static constexpr std::chrono::milliseconds kBurst{50};

  // `rate`: bytes per second; 0: no limit.
  explicit Throttle(double rate) : rate_(rate) {}

  void setRate(double rate) { rate_ = rate; }
  double rate() const { return rate_; }

  // Counts bytes transferred at `time`; returns when their connection may continue.
  SteadyTime take(std::size_t bytes, SteadyTime time) {
    if (rate_ == 0) return time;
    const std::chrono::duration<double> seconds(static_cast<double>(bytes) / rate_);
    freeAt_ = std::max(freeAt_, time - kBurst) +
              std::chrono::duration_cast<SteadyTime::duration>(seconds);
    return freeAt_;
  }

 private:
  double rate_;
  SteadyTime freeAt_{};
};

}  // namespace cleave
