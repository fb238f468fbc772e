// The seats of the runs and trials that the server serves, from their admission until their run is
// closed. A pointer to a seat keeps its run alive. io thread only.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/core/clock.h"
#include "common/core/error.h"
#include "server/run/admission.h"
#include "server/run/served_run.h"
#include "server/status/status.h"

namespace cleave {

class RunTable {
 public:
  // The first two are borrowed. `closed` is called after each run that was closed.
  RunTable(const RunResources& resources, Admission& admission, std::function<void()> closed)
      : resources_(resources),
        admission_(admission),
        closed_(std::move(closed)),
        nextClosed_(resources.io, SteadyTime::max()) {}

  // Decides whether the run may start, and adds its seat. The caller must close() or park it.
  // Throws UsageError or RunError with the code and sentence of the refusal: the errors of
  // planRun() and Admission, checkEdges(), "bad-run-id", "run-in-use", "stale-generation". If the
  // same run is already being served, it ends if this client may continue it; until it has ended,
  // the new request is refused as "run-in-use". Null: see ServedRun::join().
  std::shared_ptr<Seat> admit(RunRequest request);
  // Whether the client continues the run of a cohort that others have ended without it. The request
  // must outlive the call. Throws RunError "run-unreadable".
  boost::asio::awaitable<bool> comesTooLate(const RunRequest& request) const;
  // Checks the request of a member that will wait for its turn, as admit() does later. Throws the
  // errors of planRun() and Admission::checkRun().
  void check(const RunRequest& request) const;
  // Checks whether the client of a trial could be the member that its Hello announces. Returns the
  // names of the members that are connected, whose run it wants too. Throws UsageError
  // "not-a-member", "other-member".
  std::vector<std::string> checkMember(const RunRequest& trial) const;
  // A seat of the run of the member's cohort; null if no member of it is connected.
  std::shared_ptr<Seat> seatOfCohort(const RunRequest& request) const;
  // While the result exists, the member waits until admit() returns a seat: the others do not go on
  // without it; in a relay, it waits for its turn. Throws RunError "member-connected" if it already
  // waits.
  std::shared_ptr<const void> expectMember(const RunRequest& request);
  bool expectsMember(const Cohort& cohort) const;
  // In a relay: the numbers of the members that wait with this digestOf() their run specs.
  std::vector<std::uint32_t> expectedNumbers(const Cohort& cohort, const std::string& spec) const;
  // Of a relay: what the last turn has left; nullopt: no turn has ended. `spec`: digestOf() the run
  // spec. The arguments must outlive the call. Throws the errors of RunStore::readTurns().
  boost::asio::awaitable<std::optional<TurnRecord>> lastTurn(const RunRequest& request,
                                                             const std::string& spec) const;
  // Waits until any run has been closed, but not longer than this.
  boost::asio::awaitable<void> waitForClosed(std::chrono::milliseconds time);
  // Returns the seat that a Hello with a token continues. Throws UsageError or RunError:
  // "others-run", "run-not-here", "stale-generation", "other-run-spec".
  std::shared_ptr<Seat> find(const RunRequest& request) const;
  // Returns the edge of a served run that expects another server with this token. Throws RunError
  // "edge-not-here".
  std::shared_ptr<RunEdge> findEdge(const std::string& runId, const std::string& token) const;
  // Call when nobody uses the seat any more; `reason`: see ServedRun::leave(). If it was the run's
  // last seat, closes the run, and removes its seats. Its memory and session are free for others
  // once the caller has released the seat too.
  boost::asio::awaitable<void> close(std::shared_ptr<Seat> seat, std::string reason = "");
  // Ends the runs of the parked seats for which `isMeant` returns true.
  void endParked(const Error& error, const std::function<bool(const Seat&)>& isMeant);
  // Completes the records of all runs with the current state. Call before exiting without closing
  // the runs.
  void completeRecords();

  // Adds the usage of all runs to the store's account.
  void recordUsage(SteadyTime time);

  bool empty() const { return seats_.empty(); }
  std::vector<SessionStatus> parked() const;

 private:
  void recordUsage(ServedRun& run, SteadyTime time);
  void closeUsage(ServedRun& run);
  void refuseServed(const RunRequest& request);
  void refuseClosing(const RunRequest& request) const;
  std::shared_ptr<Seat> join(RunRequest request, const RunPlan& plan,
                             const std::shared_ptr<Seat>& first);
  std::function<void(std::exception_ptr)> failedFunction(const std::string& key);
  std::unique_ptr<Admission::Ticket> reserve(const std::string& identity, const RunPlan& plan,
                                             std::size_t forMember);
  bool endOldestParked(const std::string& identity);
  void parkedSeatFailed(const std::string& key, std::exception_ptr error);

  const RunResources& resources_;
  Admission& admission_;
  const std::function<void()> closed_;
  boost::asio::steady_timer nextClosed_;                // cancelled when a run has been closed
  std::map<std::string, std::shared_ptr<Seat>> seats_;  // by keyOf()
  struct Expected {
    std::string cohort, member, spec;
    std::weak_ptr<const void> waits;
  };
  std::vector<Expected> expected_;  // see expectMember()
};

}  // namespace cleave
