// For which members of a cohort the others wait, and how long they have waited.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "common/core/clock.h"

namespace cleave {

// Members are counted by their positions among those that take part. Any thread.
class Lateness {
 public:
  explicit Lateness(std::size_t members) : members_(members) {}

  // Call with each part of a sum that a member has sent.
  void sent(std::size_t member, SteadyTime time = now());
  // Whether its part of the newest sum is missing.
  bool isAwaited(std::size_t member) const;
  // The time from the first part of each sum to this member's, over all sums.
  double seconds(std::size_t member, SteadyTime time = now()) const;

 private:
  struct Member {
    std::uint64_t parts = 0;
    double seconds = 0;
  };

  mutable std::mutex mutex_;
  std::vector<Member> members_;
  std::uint64_t parts_ = 0;  // of the member that has sent most
  SteadyTime first_;         // when the first part of the newest sum came
};

}  // namespace cleave
