// Who has the next turn of a relay, if some members are not there.
#pragma once

#include <cstdint>
#include <vector>

namespace cleave {

struct TurnQueue {
  std::uint64_t next = 0;              // number of the next turn
  std::vector<std::uint32_t> waiting;  // numbers of the members that are there

  // Whether this one takes the next turn, or, if the others have waited for long enough, one that
  // follows: of those that wait, the one whose turn comes first.
  bool isNext(std::uint32_t member, std::uint32_t members, bool hasWaited) const;
};

}  // namespace cleave
