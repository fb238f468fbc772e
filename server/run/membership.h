// Which clients may sit at a run of a cohort.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "common/topology/cohort.h"
#include "server/run/run_request.h"

namespace cleave {

// The client's number in its cohort; 0 without a cohort. Throws UsageError "not-a-member" unless
// its certificate has the name of that member.
std::uint32_t memberNumber(const RunRequest& request);

// Throws UsageError "other-member", which names what differs, unless both clients want the same
// run.
void checkSameRun(const RunRequest& first, const RunRequest& other);

// Throws ProtocolError "bad-metadata" unless what the member says about its past is possible.
void checkAnnounced(const RunRequest& request);

// A member that is connected.
struct Announced {
  std::uint32_t number = 0;
  const wire::Hello* hello = nullptr;
};

// What the members of a cohort that are connected can do together.
struct Gathering {
  std::vector<wire::Commit> commits;   // that they can continue from, newest first; none: step 0
  std::vector<std::uint32_t> joining;  // numbers of those that lack these checkpoints
  // Those that cannot take part, with the reason.
  std::map<std::uint32_t, UsageError> unfit;
  Roster roster;  // as of `commits`; without samples of members not seen yet
  std::map<std::uint64_t, std::uint64_t> evaluated;  // evaluation batches before, by step
};
// The checkpoints are those of which every member has saved its part, and that a member has
// committed. If the cohort may go on without some members, only those count that the first member
// has saved, if it has saved any; those that lack the newest one join, with its state. `members`:
// in their order. Throws UsageError "other-member"
// if one has committed checkpoints, but others that are needed lack their parts, or members
// disagree about the past.
Gathering gather(const Cohort& cohort, const std::vector<Announced>& members);

// Throws UsageError "other-member" if the member had other data before, as the roster says.
void checkSameData(const Roster& roster, const Announced& member);

// The error if members leave and join too often.
UsageError tooManyChanges();

// The roster of a run that continues from `step` with these members.
Roster rosterFrom(const Gathering& gathering, std::uint64_t step,
                  const std::vector<std::uint32_t>& present);

// Whether a member has saved something of the run.
bool haveBegun(const std::vector<Announced>& members);

}  // namespace cleave
