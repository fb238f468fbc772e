// The folder with the records of all runs, STORE/IDENTITY/RUN, and with initial weights. Each
// identity has its share of the disk.
#pragma once

#include <spdlog/logger.h>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/core/clock.h"
#include "common/core/open_file.h"
#include "common/device/compute_device.h"
#include "common/files/record.h"
#include "common/record/run_files.h"
#include "common/run/metrics.h"
#include "proto/wire.pb.h"
#include "server/access/access.h"
#include "server/config/settings.h"
#include "server/store/disk_share.h"
#include "server/store/last_connection.h"
#include "server/store/run_checkpoints.h"
#include "server/store/run_weights.h"
#include "server/store/store_lock.h"
#include "server/store/turn_store.h"
#include "server/store/usage.h"
#include "server/store/weights_store.h"

namespace cleave {

// The records of one run. A trial's records write nothing, and have no log, no disk share and no
// checkpoints.
struct StoredRun {
  std::shared_ptr<RunFiles> files = std::make_shared<RunFiles>();
  std::shared_ptr<spdlog::logger> log;
  std::shared_ptr<DiskShare> disk;
  std::shared_ptr<const UnnamedSpace> samplesSpace;  // for kept samples; null: they are in memory
  std::shared_ptr<RunCheckpoints> checkpoints;       // null if the server makes none
  // Those of the run's commits whose checkpoints are present and undamaged.
  std::vector<wire::Commit> available;
  LastConnection connection;       // that of the Hello; its generation may be higher
  std::uint64_t recordedStep = 0;  // last training step of the run's earlier connections; 0: none
  // Null: initial weights are neither loaded from the store nor kept in it.
  std::shared_ptr<RunWeights> weights;
  std::shared_ptr<TurnStore> turns;  // of a relay; else null
  OpenFile lock;                     // lock of the run's folder
  bool isExact = true;               // whether the checkpoint's fingerprint equals this server's
};

// When the members of a cohort try again if the server lacks the records or the checkpoints that
// they need.
inline constexpr double kRecordsRetrySeconds = 10;

// The records of a cohort that may go on without some members belong to the first of all its
// members, who began the run, and are used by whoever continues it.
struct CohortRecords {
  bool isOwners = false;  // whether that member asks for them
  bool hasBegun = false;  // whether a member that is present has committed a checkpoint
  bool isRelay = false;
};

// Whose records a run has, and what it needs. The references must outlive the call.
struct StoreRequest {
  const std::string& identity;
  const wire::Hello& hello;                  // in a cohort, that of the first member present
  std::optional<CohortRecords> cohort;       // nullopt: the records are the client's own
  const std::vector<wire::Commit>& commits;  // of the checkpoints that it may continue from
  const std::string& spec;                   // digestOf() its run spec
  std::uint64_t session = 0;
  int threads = 0;
  // Maximum size of the run's initial weights; 0: it does not use the store of weights.
  std::uint64_t maxWeightsBytes = 0;
  // Disk space for kept samples, taken from the identity's share; may be 0.
  std::size_t samplesBytes = 0;
};

// io thread, except the constructor.
class RunStore {
 public:
  // The references are borrowed. `metrics` observes the rows of all runs; it may be null. Throws
  // UsageError "not-writable" or "store-in-use".
  RunStore(const ServerSettings& settings, const Access& access, const ComputeDevice& compute,
           std::shared_ptr<Metrics> metrics, boost::asio::any_io_executor io);

  // Creates the folder of the requested run, with its description, its log and its CSV files, or
  // continues those of an earlier connection. The disk is used on the store's thread. Throws
  // UsageError "run-exists", RunError "stale-generation", "no-checkpoint" if there are no records
  // of the cohort's run, and RunError if there is no room or nothing can be written. The request
  // must outlive the call.
  boost::asio::awaitable<StoredRun> open(const StoreRequest& request);
  // What the last turn of the cohort `id` has left, in the records of this identity; nullopt: no
  // turn has ended. `spec`: as in StoreRequest. The arguments must outlive the call. Throws
  // UsageError "other-member" if the cohort has begun with another run spec, RunError
  // "bad-checkpoint" or "run-unreadable".
  boost::asio::awaitable<std::optional<TurnRecord>> readTurns(const std::string& identity,
                                                              const std::string& spec,
                                                              const std::string& id);
  // Whether members have ended the last run of the cohort with this run spec, but not the one with
  // this run id. The arguments must outlive the call. Throws RunError "run-unreadable".
  boost::asio::awaitable<bool> isDoneWithout(const std::string& identity, const std::string& spec,
                                             const std::string& runId);
  // The members with these run ids have ended the cohort's run; none: it is in progress. Does not
  // wait for the disk.
  void cohortIsDone(const std::string& identity, const std::string& spec,
                    const std::vector<std::string>& runIds);
  // Stores the connection that continues a run in memory, and returns it. The arguments must
  // outlive the call. Throws RunError "stale-generation".
  boost::asio::awaitable<LastConnection> storeConnection(const std::string& identity,
                                                         const wire::Hello& hello);

  // Call it about once per second; does not wait for the disk.
  void look(SteadyTime time) {
    disk_.look(time);
    usage_.look(time);
  }
  // Free bytes beyond the server's reserve; negative if less than the reserve is free.
  std::int64_t roomBytes() const { return disk_.roomBytes(); }
  UsageBook& usage() { return usage_; }
  // Bytes in the store, by identity.
  std::map<std::string, std::int64_t> usedBytes() const { return disk_.usedBytes(); }
  // Any thread.
  const Recorder& recorder() const { return recorder_; }
  // Calls `then` on the store's thread once the rows recorded so far are in their files, or could
  // not be written. Any thread.
  void whenWritten(std::function<void()> then);

 private:
  std::string folderOf(const std::string& identity, const std::string& runId) const;
  void writeRows();
  // The last training step in the folder's records.
  std::uint64_t recordedStep(const std::string& folder);
  std::shared_ptr<RunWeights> weightsOf(const std::string& identity, const std::string& sha256,
                                        std::uint64_t maxBytes, const StoredRun& run);

  const ServerSettings& settings_;
  const Access& access_;
  const ComputeDevice& compute_;
  const std::shared_ptr<Metrics> metrics_;
  const boost::asio::any_io_executor io_;
  const StoreLock lock_;
  Recorder recorder_;
  DiskShares disk_;
  const std::shared_ptr<WeightsStore> weights_;
  // There are several threads, so that no Hello waits for another run's checkpoint or weights, and
  // no checkpoint waits for weights that are being read. The checkpoint thread also writes new
  // weights.
  boost::asio::thread_pool folders_{1};
  boost::asio::thread_pool checkpoints_{1};
  boost::asio::thread_pool reading_{1};
  UsageBook usage_;
};

}  // namespace cleave
