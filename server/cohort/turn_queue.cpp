#include "server/cohort/turn_queue.h"

#include <algorithm>

#include "common/topology/turns.h"

namespace cleave {

bool TurnQueue::mayTake(std::uint32_t member, std::uint32_t members, bool hasWaited) const {
  const std::uint64_t own = turnFrom(next, member, members);
  if (next >= turns || own == next) return true;
  return hasWaited && own < turns && std::ranges::all_of(waiting, [&](std::uint32_t other) {
           return turnFrom(next, other, members) >= own;
         });
}

}  // namespace cleave
