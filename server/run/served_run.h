// A run or a trial on the server, from its admission to its end: a body, and a seat for its client,
// or for each member of its cohort.
#pragma once

#include <spdlog/logger.h>

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/engine/participant.h"
#include "common/engine/trace.h"
#include "common/engine/worker.h"
#include "common/files/environment.h"
#include "common/link/probe/trial.h"
#include "common/link/tensor_link.h"
#include "common/model/stage/stage.h"
#include "common/run/action_tables.h"
#include "common/run/plan.h"
#include "proto/wire.pb.h"
#include "server/cohort/lateness.h"
#include "server/cohort/saved_by_all.h"
#include "server/run/admission.h"
#include "server/run/body_checkpoints.h"
#include "server/run/latch.h"
#include "server/run/membership.h"
#include "server/run/run_edges.h"
#include "server/run/run_replicas.h"
#include "server/run/run_resources.h"
#include "server/run/seat.h"
#include "server/status/status.h"
#include "server/status/throughput_meter.h"
#include "server/store/run_record.h"
#include "server/store/run_store.h"
#include "server/store/usage.h"
#include "stage/remote_body.h"

namespace cleave {

// The error for a trial that exceeds what clients need. Trials are limited because they leave no
// records.
ProtocolError trialTooLong(const std::string& limit);

// An admitted run. Call open(), start() after the first Seat::attach(), and close(), in this order;
// call close() also if another function throws. io thread. Stage and engine are built, used and
// destroyed on the device thread.
class ServedRun {
 public:
  // `request`, `ticket` and `failed` are those of the first seat. Throws the errors of
  // memberNumber().
  ServedRun(const RunResources& resources, RunRequest request, RunPlan plan,
            std::unique_ptr<Admission::Ticket> ticket,
            std::function<void(std::exception_ptr)> failed);
  ~ServedRun();

  // The seat of the client that asked for the run, or of the first member present, which decides.
  Seat& owner() const { return *seats_.front(); }

  // ---- Of a cohort, before open() ----

  // Adds a seat for a member. Null: the run is in progress without it: see requestCheckpointFor().
  // Throws UsageError "other-member", "not-a-member", or RunError "member-connected", "run-in-use".
  Seat* join(RunRequest request, std::unique_ptr<Admission::Ticket> ticket,
             std::function<void(std::exception_ptr)> failed);
  // Returns the names of the other members that have seats. Throws UsageError "other-member" if
  // this one had other data before.
  std::vector<std::string> checkMember(const Announced& member) const;
  // Asks the members of the run in progress to make a checkpoint and to end it, so that this one
  // can take part when they continue; but not soon after they have continued, because each change
  // costs time. Throws Error if it cannot take part.
  void requestCheckpointFor(const Announced& member);
  // Whether each member has a seat.
  bool isComplete() const { return missing().empty(); }
  // The names of members without a seat.
  std::vector<std::string> missing() const;
  // Whether the session of this seat should open the run although members are missing: the others
  // are enough to begin, or these have stayed away for too long.
  bool goesOnWithout(const Seat& seat) const;
  // Waits until the run is open, or for a second. Throws the error of open().
  boost::asio::awaitable<bool> waitUntilOpen();

  // ----

  // Call when nobody uses the seat any more. `reason`: why its client has left; empty: the run is
  // done. Unless it is, the other seats end too. Returns whether it was the last one: the run must
  // then be closed.
  bool leave(Seat& seat, const std::string& reason);

  // Opens the run's records, and creates its links and its worker. The worker's first action builds
  // the model. Requires isComplete() or goesOnWithout(). Ends the seats of members that cannot
  // continue with the others. Throws Error.
  boost::asio::awaitable<void> open();
  // Called by a seat of the run that will use another connection.
  void connected(const Seat& seat);
  // Tells the clients other than that of `changed`, which has lost its connection or has another
  // one, for whom the cohort waits.
  void tellWhoIsMissing(const Seat& changed) const;
  // The answer to the Hello of the seat's connection.
  wire::HelloOk helloOk(const Seat& seat) const;
  // Describes the run for the log. Call after open().
  std::string summary() const;
  // Starts processing the clients' messages.
  void start();
  // Call before leave() when a client has sent Bye. If no other seat is left, waits for the work
  // that no client waits for: the last update. Without it, the server would lack a step that the
  // client has.
  boost::asio::awaitable<void> finishWork();
  // Whether its seats may be parked when their connections break; otherwise, the run is closed.
  bool mayPark() const;
  // How long a parked seat waits for its client, and what says so. In a cohort that may go on
  // without some members, not longer than the others want to wait.
  struct Patience {
    std::chrono::milliseconds time;
    const char* key;
  };
  Patience patience() const;
  // Waits until all computation of the run has stopped, and completes its records. The run's memory
  // is in use until then. The connections must have ended.
  boost::asio::awaitable<void> close();
  bool isClosing() const { return isClosing_; }
  // Call when the client of a seat has sent "done": at most the last checkpoint is still needed. In
  // a cohort, the store keeps who has, until the run starts again (RunStore::cohortIsDone()).
  void finish(const Seat& seat);
  // Open from then on.
  const std::shared_ptr<Latch>& done() const { return done_; }

  // Asks the clients to make a checkpoint and then disconnect.
  void drain();
  // Records how the run ended. Only the first call has an effect.
  void completeRecords();
  // Logs to the run's own log and, unless its identity has logged too many lines, to the server's.
  void log(spdlog::level::level_enum level, const std::string& line);

  // The edge before the body, if there is one with this token; else null.
  std::shared_ptr<RunEdge> edge(const std::string& token) const {
    return isOpen() ? edges_.find(token) : nullptr;
  }
  // When something other than a Ping last crossed an edge; nullopt: no edge is connected.
  std::optional<SteadyTime> edgeActivity() const {
    return isOpen() ? edges_.lastActivity() : std::nullopt;
  }
  // Whether a client may be waiting for the server: the server has work for the run, or is
  // opening or closing it.
  bool hasWork() const;
  std::size_t mailboxEntries() const { return isServing_ ? worker_->waiting() : 0; }
  // The usage since the last call.
  Usage takeUsage() { return usage_.take(totals()); }
  // Fills in the body's values, and in a cohort those of the seat's member.
  void describe(const Seat& seat, SessionStatus& status) const;

 private:
  boost::asio::awaitable<void> openAll();
  boost::asio::awaitable<void> openRecords();
  std::optional<CohortRecords> cohortRecords() const;
  void gatherMembers();
  void joinMembers();
  const std::string& nameOf(const Seat& seat) const;
  std::vector<Announced> announced() const;
  std::vector<std::string> presentNames() const;
  std::vector<std::string> waitsFor() const;
  std::size_t placeOf(const Seat& seat) const;
  void openLinks();
  void edgeFailed(const RunError& error);
  bool isOpen() const { return !seats_.empty() && owner().link() != nullptr; }
  bool isBeingOpened() const { return isOpening_ && opened_.expiry() == SteadyTime::max(); }
  // Those of the edges, then those of the seats; none before open().
  std::vector<TensorLink*> links() const;
  std::vector<std::shared_ptr<TensorLink>> clientLinks() const;  // one per seat
  LinkTotals totals() const;
  std::shared_ptr<EngineWorker> makeWorker();
  std::unique_ptr<Body> makeBody();  // device thread
  ActionTable build();               // device thread
  const wire::Hello& hello() const { return owner().request().hello; }
  bool resumes() const { return !commits_.empty(); }
  // Whether the Hello contains the digest of initial weights that the client would send.
  bool namesWeights() const {
    return plan_.spec.initialWeights && !isTrial_ && !resumes() &&
           !hello().weights_sha256().empty();
  }
  void storeDoneRuns() const;
  bool hasStoredWeights() const { return stored_.weights && stored_.weights->areStored(); }
  bool isUsingWeightsStore() const { return stored_.weights && stored_.weights->isBusy(); }
  void loadStoredWeights();
  bool hasTurn() const;
  using HandOver = std::function<void(Blob, const std::shared_ptr<TensorLink>& client)>;
  HandOver handOverFunction();
  void continuesFrom(std::uint64_t step, std::uint64_t evaluated);  // device thread
  ReduceFunction reduceFunction();
  Result importAndKeep(const ActionFunction& import, Work work);  // device thread
  void finishedBatch();                                           // device thread
  bool mayFetchWeights() const { return resources_.settings.fetchWeights && !isTrial_; }
  boost::asio::awaitable<void> closeWorker();
  // Ends the run with an error, from any thread.
  std::function<void(std::exception_ptr)> failFunction() const;
  bool hasLeft(const Seat& seat) const;
  bool isJoining(const Seat& seat) const;
  void endSeats(const Error& error);

  const RunResources& resources_;
  const bool isTrial_;
  RunPlan plan_;
  const std::shared_ptr<spdlog::logger> serverLog_;
  std::vector<std::unique_ptr<Seat>> seats_;  // by number; never empty until the run is closed
  std::vector<std::unique_ptr<Seat>> unfit_;  // of members that cannot continue with the others
  const Seat* admitted_ = nullptr;            // the first seat, with the ticket of the run
  const SteadyTime created_ = now();
  Gathering gathering_;  // of a cohort, when the run is opened
  // Of a relay, when the run is opened: what the last turn has left, and what is sent of it.
  std::optional<TurnRecord> turn_;
  std::optional<Blob> turnState_;
  // io thread: the newest checkpoint of this turn, and the evaluation batches before it.
  struct LastSaved {
    Saved saved;
    std::uint64_t evaluated = 0;
    bool isHandedOn = false;  // the turn is over
  };
  const std::shared_ptr<LastSaved> lastSaved_ = std::make_shared<LastSaved>();
  bool isOpening_ = false;             // open() has been called
  std::vector<const Seat*> left_;      // those that leave() was called for
  std::vector<std::string> doneRuns_;  // the run ids of the clients that have sent "done"
  // Before the records are open, those that the clients could continue from; then those that the
  // server has too, newest first in a cohort.
  std::vector<wire::Commit> commits_;
  ThreadCount threads_;
  StoredRun stored_;
  std::shared_ptr<RunRecord> record_;
  std::shared_ptr<CodecQueue> codecQueue_;
  std::shared_ptr<TraceRecorder> trace_;  // null: none
  std::shared_ptr<MemoryAccount> account_;
  std::shared_ptr<Mailbox> mailbox_;
  std::optional<StageMemory> stageMemory_;              // if the stage computes in another process
  std::atomic<std::weak_ptr<WatchedProcess>> process_;  // that process, until it has ended
  RunEdges edges_;
  boost::asio::steady_timer opened_;  // expires when the run is open, or could not be opened
  std::exception_ptr openError_;
  std::shared_ptr<RunReplicas> replicas_;  // null: the body has no replicas
  std::unique_ptr<Body> body_;
  std::shared_ptr<EngineWorker> worker_;
  std::shared_ptr<Lateness> lateness_;  // of the seats' members; null before open()
  ThroughputMeter pace_;
  UsageMeter usage_;
  std::uint64_t batches_ = 0;                   // device thread; counted only for trials
  std::shared_ptr<SavedByAll> saved_;           // null before open()
  std::optional<BodyCheckpoints> checkpoints_;  // nullopt before open()
  std::uint64_t applied_ = 0;                   // number of updates, set when the worker is closed
  // Set before an error of the run reaches the link, which may already have failed for another
  // reason.
  const std::shared_ptr<Latch> hasFailed_ = std::make_shared<Latch>();
  const std::shared_ptr<Latch> done_ = std::make_shared<Latch>();
  SteadyTime served_;            // when start() was called
  std::uint64_t upAtStart_ = 0;  // bytes from the clients until then: their Hellos
  bool isServing_ = false;       // the worker runs
  bool isDraining_ = false;
  bool isClosing_ = false;
};

}  // namespace cleave
