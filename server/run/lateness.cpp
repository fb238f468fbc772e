#include "server/run/lateness.h"

#include <chrono>

namespace cleave {

void Lateness::sent(std::size_t member, SteadyTime time) {
  Member& own = members_[member];
  if (++own.parts > parts_) {
    parts_ = own.parts;
    first_ = time;
    return;
  }
  own.seconds += std::chrono::duration<double>(time - first_).count();
}

double Lateness::seconds(std::size_t member, SteadyTime time) const {
  const double sinceFirst = std::chrono::duration<double>(time - first_).count();
  return members_[member].seconds + (isAwaited(member) ? sinceFirst : 0);
}

}  // namespace cleave
