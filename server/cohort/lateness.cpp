#include "server/cohort/lateness.h"

#include <chrono>

namespace cleave {

void Lateness::sent(std::size_t member, SteadyTime time) {
  const std::lock_guard lock(mutex_);
  Member& own = members_[member];
  if (++own.parts > parts_) {
    parts_ = own.parts;
    first_ = time;
    return;
  }
  own.seconds += std::chrono::duration<double>(time - first_).count();
}

bool Lateness::isAwaited(std::size_t member) const {
  const std::lock_guard lock(mutex_);
  return members_[member].parts < parts_;
}

double Lateness::seconds(std::size_t member, SteadyTime time) const {
  const std::lock_guard lock(mutex_);
  const Member& own = members_[member];
  const double sinceFirst = std::chrono::duration<double>(time - first_).count();
  return own.seconds + (own.parts < parts_ ? sinceFirst : 0);
}

}  // namespace cleave
