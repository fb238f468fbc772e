// Who may take the next turn of a relay, if some members are not there.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace cleave {

struct TurnQueue {
  std::uint64_t next = 0;              // number of the next turn
  std::vector<std::uint32_t> waiting;  // numbers of the members that are there
  // Of all members together: the later ones have no steps, and anybody may take them.
  std::uint64_t turns = std::numeric_limits<std::uint64_t>::max();

  // Whether this member takes the next turn, or, if it has waited for long enough, its own next
  // one: of the members that wait, the one whose turn comes first.
  bool mayTake(std::uint32_t member, std::uint32_t members, bool hasWaited) const;
};

}  // namespace cleave
