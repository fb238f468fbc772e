#include "server/sessions/idle.h"

#include <algorithm>

namespace cleave {

double IdleClock::look(SteadyTime time, SteadyTime activity, bool waitsForServer) {
  const SteadyTime since = std::max(last_, activity);
  if (waitsForServer || activity > last_) idle_ = 0;
  if (!waitsForServer && time > since) {
    idle_ += std::min(secondsBetween(since, time), kMaxSecondsPerLook);
  }
  last_ = time;
  return idle_;
}

}  // namespace cleave
