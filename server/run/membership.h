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

// The checkpoints that the members have committed and of which they still have their own parts.
std::vector<wire::Commit> candidates(const std::vector<Announced>& members);

// What the members of a cohort that are connected can do together.
struct Gathering {
  std::vector<wire::Commit> commits;   // that they can continue from, newest first; none: step 0
  std::vector<std::uint32_t> joining;  // numbers of those that lack these checkpoints
  // Those that cannot take part, with the reason.
  std::map<std::uint32_t, UsageError> unfit;
  Roster roster;  // as of `commits`; without samples of members not seen yet
  std::map<std::uint64_t, std::uint64_t> evaluated;  // evaluation batches before, by step
};
// The checkpoints are those of candidates() of which every member has saved its part. If the cohort
// may go on without some members, those that lack the newest one join. `members`: in their order.
// `available`: the candidates of which the server has its part; null: all. Throws UsageError
// "other-member" if there are candidates, but members that are needed lack their parts, or members
// disagree about the past.
Gathering gather(const Cohort& cohort, const std::vector<Announced>& members,
                 const std::vector<wire::Commit>* available = nullptr);

// Throws UsageError "other-member" if the member had other data before, as the roster says.
void checkSameData(const Roster& roster, const Announced& member);

// The error if members leave and join too often.
UsageError tooManyChanges();

// The roster of a run that continues from `step` with these members.
Roster rosterFrom(const Gathering& gathering, std::uint64_t step,
                  const std::vector<std::uint32_t>& present);

// Whether a member has committed a checkpoint of the run.
bool haveBegun(const std::vector<Announced>& members);
// Whether a member has saved its part of a checkpoint, which another one may have committed.
bool haveSaved(const std::vector<Announced>& members);

}  // namespace cleave
