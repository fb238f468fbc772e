// The lowest signal-to-noise ratio of the watched tensors that a server has received over direct
// links, by step. The server passes it on to the client with its own tensors, since no client sees
// those of a direct link. All links of a place share one object. Any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

namespace cleave {

class StepSnrs {
 public:
  void add(std::uint64_t step, double snrDb) {
    const std::lock_guard lock(mutex_);
    const auto entry = lowest_.try_emplace(step, snrDb).first;
    entry->second = std::min(entry->second, snrDb);
    if (lowest_.size() > kSteps) lowest_.erase(lowest_.begin());
  }
  // The lower one of `own` and those that were added for the step; nullopt: there is none.
  std::optional<double> lowestWith(std::uint64_t step, std::optional<double> own) const {
    const std::lock_guard lock(mutex_);
    const auto found = lowest_.find(step);
    if (found == lowest_.end()) return own;
    return std::min(own.value_or(found->second), found->second);
  }

 private:
  static constexpr std::size_t kSteps = 64;  // more than can be in progress

  mutable std::mutex mutex_;
  std::map<std::uint64_t, double> lowest_;
};

}  // namespace cleave
