// The most bytes a second that several connections may move together, both ways counted alike.
// Where they move more, their reading and writing waits, and the peers feel it as a slow link. io
// thread only.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>

#include "common/core/clock.h"

namespace cleave {

class Throttle {
 public:
  // What was not used within so much time before is lost: no burst is longer.
  static constexpr std::chrono::milliseconds kBurst{50};

  // `rate`: bytes a second; 0: no limit.
  explicit Throttle(double rate) : rate_(rate) {}

  void setRate(double rate) { rate_ = rate; }
  double rate() const { return rate_; }

  // Counts bytes that have moved at `time`; returns when their connection may go on.
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
