// Which clients may sit at a run of a cohort.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "server/run/seat.h"

namespace cleave {

// The client's number in its cohort; 0 without a cohort. Throws UsageError "not-a-member" unless
// its certificate has the name of that member.
std::uint32_t memberNumber(const RunRequest& request);

// Throws UsageError "other-member", which names what differs, unless both clients want the same
// run.
void checkSameRun(const RunRequest& first, const RunRequest& other);

// The checkpoints of which every member of the cohort has saved its part, and that a member has
// committed, newest first. None: the run begins at step 0. Throws UsageError "other-member" if a
// member has committed checkpoints, but another one lacks its part of each.
std::vector<wire::Commit> commonCommits(const std::vector<std::unique_ptr<Seat>>& members);

}  // namespace cleave
