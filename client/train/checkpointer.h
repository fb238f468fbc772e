// Makes the client's checkpoints, and commits those that every part of the run has saved. Files are
// written on a separate thread.
//
//   decide(n)                 begin(n)       the Step requests the servers' parts
//   after step n              add()          copies head and tail; a thread writes them
//   a server's Saved          saved()
//   all are durable           the commit is written: from then on the run can continue from n
//
// In a cohort, the first member's Step requests the parts of all. The first server waits for all of
// them before it sends Saved.
#pragma once

#include <atomic>
#include <boost/asio/thread_pool.hpp>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "client/config/settings.h"
#include "common/checkpoint/commits.h"
#include "common/core/clock.h"
#include "common/core/fault_notes.h"
#include "common/engine/messages.h"
#include "common/run/part_checkpoints.h"
#include "common/topology/division.h"

namespace cleave {

class Checkpointer {
 public:
  // `commits`: the commits that the run already has, newest first. `servers`: the replica that each
  // server is, in model order and those of a body in rank order. `syncRecords` makes all rows
  // written so far durable; it is called before each commit, and before `savedHere`, which is
  // called when the client's part is durable, or could not be saved; null: nobody waits for it.
  // `files` is borrowed.
  Checkpointer(Files& files, const std::string& runFolder, const CheckpointSettings& settings,
               std::string fingerprint, std::vector<RunCommit> commits,
               std::vector<Replica> servers, std::function<void()> syncRecords,
               std::function<void(const Saved&)> savedHere = nullptr);
  // Calls finishWriting().
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  // ---- Training thread ----

  // Throws RunError if the last checkpoint failed and checkpoint.on_failure is `stop`.
  void checkFailure();
  // Whether `step` should make a checkpoint. Throws the error of checkFailure().
  bool isDue(std::uint64_t step);
  // Requests a checkpoint from the next step. If one is still in progress, a later step makes it.
  void request() { isRequested_ = true; }
  void begin(std::uint64_t step);
  // The steps whose checkpoints are still needed.
  std::vector<std::uint64_t> keep() const { return commits_.steps(); }

  // The checkpoint relative to which the kept samples of the next one are saved; step 0: none.
  CheckpointInfo baseOfSamples() { return checkpoints_.baseOfSamples(keep()); }
  // Call after the run has been restored from the client's checkpoint `from`.
  void continued(const CheckpointInfo& from) { checkpoints_.continued(from); }

  // Any thread. Adds the client's part of the checkpoint that begin() started.
  void add(std::shared_ptr<PartSnapshot> part);
  // Waits until no checkpoint is in progress, for at most `seconds`, or until `isOver()`: then the
  // servers save no more. Any thread may change what `isOver` reads.
  void settle(double seconds, const std::function<bool()>& isOver);
  std::uint64_t lastCommit() const;  // the step of the last commit; 0: there is none
  // Waits for files that are being written. A checkpoint that is not committed by then is lost, and
  // no more functions are called back.
  void finishWriting() { writer_.join(); }

  // ---- io thread ----

  // Throws ProtocolError if no such checkpoint was requested, and RunError "replicas-differ" if
  // another replica has saved other weights.
  void saved(std::size_t server, const Saved& saved);

 private:
  // The checkpoint in progress.
  struct Open {
    std::uint64_t step = 0;
    // CheckpointInfo::sha256 of each part; "": the part failed.
    std::optional<std::string> client;
    std::vector<std::optional<std::string>> servers;
    // By the number of a body's first server: the digest that one of its replicas has saved.
    std::map<std::size_t, std::string> bodies;
    bool isDone() const;
    bool hasFailed() const;  // call only if isDone()
  };
  std::string serverName(std::size_t server) const;
  void checkBody(std::size_t server, const Saved& saved);
  void write(const PartSnapshot& part);
  void finishIfDone();
  void commit(const RunCommit& commit);
  void removeExcept(const std::vector<std::uint64_t>& needed);
  // `server`: the number of the server that failed; nullopt: the client did.
  void failed(std::uint64_t step, const Error& error,
              std::optional<std::size_t> server = std::nullopt);

  const CheckpointSettings settings_;
  const std::vector<Replica> servers_;
  const std::function<void()> syncRecords_;
  const std::function<void(const Saved&)> savedHere_;
  PartCheckpoints checkpoints_;
  CommitLog commits_;
  SteadyTime last_ = now();  // start of the last checkpoint
  std::atomic<bool> isRequested_ = false;

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::optional<Open> open_;
  std::exception_ptr failure_;  // the latest error
  FaultNotes faults_;

  FaultNotes removalFaults_;  // writer thread

  boost::asio::thread_pool writer_{1};  // must be the last member: its tasks use the members above
};

}  // namespace cleave
