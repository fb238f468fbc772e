// Measures how long a peer makes no progress. Progress is a step or a byte of a tensor. A new
// connection, a HelloOk or a Pong is none: a peer can produce these forever without any work.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "common/core/clock.h"

namespace cleave {

// Steps and bytes so far. Any thread.
using ProgressCount = std::atomic<std::uint64_t>;

class ProgressClock {
 public:
  explicit ProgressClock(SteadyTime start) : since_(start) {}

  // Returns the seconds without progress. They restart each time that `progress`, a count of
  // steps and bytes, exceeds its highest value so far.
  double secondsWithout(std::uint64_t progress, SteadyTime time) {
    if (progress > highest_) {
      highest_ = progress;
      since_ = std::max(since_, time);
    }
    return secondsBetween(since_, time);
  }
  // Does not count these seconds, in which the peer owed nothing.
  void exclude(double seconds) {
    since_ += std::chrono::duration_cast<SteadyTime::duration>(
        std::chrono::duration<double>(std::max(0.0, seconds)));
  }

 private:
  SteadyTime since_;
  std::uint64_t highest_ = 0;
};

}  // namespace cleave
