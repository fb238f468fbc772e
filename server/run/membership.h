// Which clients may sit at a run of a cohort.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/topology/cohort.h"
#include "server/run/run_request.h"
#include "server/store/turn_store.h"

namespace cleave {

// The client's number in its cohort; 0 without a cohort. Throws UsageError "not-a-member" unless
// its certificate has the name of that member.
std::uint32_t memberNumber(const RunRequest& request);

// In whose name the records of the run are. Without certificates, all members have the same
// identity.
std::string recordsIdentity(const RunRequest& request);
// How long a client should wait before it tries to take part again.
inline constexpr double kMemberRetrySeconds = 2;

// Throws UsageError "other-member", which names what differs, unless both clients want the same
// run.
void checkSameRun(const RunRequest& first, const RunRequest& other);

// The settings that must be alike in all turns of a relay. Throws UsageError "other-member" unless
// those of the member are those of `record`.
std::map<std::string, std::string> agreedOf(const RunRequest& request);
void checkAgreed(const TurnRecord& record, const RunRequest& request);

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

// Of a relay: from which checkpoint the member continues, and the roster with its turn as the last
// attendance. It continues its own turn if it has a checkpoint of it; otherwise, it joins at the
// end of the last turn. `record`: of the last turn; nullopt: there was none. Throws UsageError
// "other-member", "bad-cohort", or RunError "no-checkpoint" if the server lacks that of `record`.
Gathering gatherTurn(const Cohort& cohort, const Announced& member,
                     const std::optional<TurnRecord>& record,
                     const std::vector<wire::Commit>& available);
// The checkpoint that a turn has ended with.
wire::Commit commitOf(const TurnRecord& record);

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
