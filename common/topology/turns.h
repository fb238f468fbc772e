// The turns of a cohort whose members train one after the other (kRelay). They are numbered from 0
// over all rounds; in each round, every member has one, in the order of the members. A member that
// stays away loses its turn. Each attendance of the roster is a turn.
#pragma once

#include <cstdint>
#include <vector>

#include "common/topology/cohort.h"

namespace cleave {

// The member's first turn from turn `number` on.
std::uint64_t turnFrom(std::uint64_t number, std::uint32_t member, std::uint32_t members);
// The numbers of the turns that have been taken: one per attendance.
std::vector<std::uint64_t> turnsOf(const Roster& roster);

// A turn is a number of passes over the member's own samples.
struct TurnLength {
  std::uint64_t epochs = 1;      // of each member, in all of its turns: a multiple of `turnEpochs`
  std::uint64_t turnEpochs = 1;  // of a turn

  std::uint64_t rounds() const { return epochs / turnEpochs; }
  // A member's epochs before this turn; after the last round, all of them.
  std::uint64_t epochsBefore(std::uint64_t number, std::uint32_t members) const;
  // Those of the turn: none after the last round.
  std::uint64_t epochsOf(std::uint64_t number, std::uint32_t members) const;
};

}  // namespace cleave
