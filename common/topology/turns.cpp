#include "common/topology/turns.h"

#include <algorithm>
#include <cassert>

namespace cleave {

std::uint64_t turnFrom(std::uint64_t number, std::uint32_t member, std::uint32_t members) {
  assert(member < members);
  const auto next = static_cast<std::uint32_t>(number % members);
  return number + (member + members - next) % members;
}

std::vector<std::uint64_t> turnsOf(const Roster& roster) {
  std::vector<std::uint64_t> turns;
  const auto members = static_cast<std::uint32_t>(roster.train.size());
  std::uint64_t next = 0;
  for (const Attendance& each : roster.attendance) {
    turns.push_back(turnFrom(next, each.present.front(), members));
    next = turns.back() + 1;
  }
  return turns;
}

std::uint64_t TurnLength::epochsBefore(std::uint64_t number, std::uint32_t members) const {
  return std::min(epochs, number / members * turnEpochs);
}

std::uint64_t TurnLength::epochsOf(std::uint64_t number, std::uint32_t members) const {
  return epochsBefore(number, members) < epochs ? turnEpochs : 0;
}

}  // namespace cleave
