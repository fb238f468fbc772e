#include "server/store/run_store.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "common/core/durable.h"
#include "common/core/log.h"
#include "common/files/sha256.h"
#include "common/run/fingerprint.h"
#include "common/run/run_folder.h"
#include "common/run/run_spec.h"
#include "server/store/finished_runs.h"
#include "server/store/last_connection.h"
#include "server/store/on_thread.h"

namespace cleave {
namespace {

constexpr const char* kCohorts = "/.cohorts";  // in the folder of an identity

// Makes and checks the folder at startup; otherwise clients would report the error, but the
// operator would not notice it.
const std::string& makeStore(const std::string& store) {
  std::error_code error;
  std::filesystem::create_directories(store, error);
  if (!error && ::access(store.c_str(), W_OK) != 0) {
    error = {errno, std::generic_category()};
  }
  if (!error) return store;
  throw UsageError("not-writable", "the store " + store + " cannot be written: " + error.message(),
                   "use a writable folder: --set store=DIR");
}

// A folder that cannot be written is the operator's fault, not that of the client's configuration.
void makeServersFolder(const std::string& folder) {
  try {
    makeRunFolder(folder, "use another run.name, or try again: each run gets its own id",
                  "ask the server's operator");
  } catch (const UsageError& error) {
    if (error.key() != kDisk) throw;
    throw RunError("cannot-write", error.what(), error.hint());
  }
}

RunError noRecords() {
  return RunError(ErrorKind::attempt, "no-checkpoint",
                  "this server has no records of the cohort's run",
                  "start the client of the first of cohort.members, in whose name the records are",
                  kRecordsRetrySeconds);
}

// Without the run's last connection, another client could not be refused, so the run cannot
// continue.
RunError badConnections(const std::string& runId) {
  return RunError("bad-checkpoint",
                  "the server's file with the last connection of the run " + runId + " is damaged",
                  "ask the server's operator for 'cleave-server runs remove " + runId +
                      "', then add --from-start to start over from step 0")
      .about("--resume");
}

// The file with the id of a cohort's run, in the folder of the identity that began it. The digest
// of the spec identifies the cohort, and the part of its run that is computed here.
std::string cohortFile(const std::string& store, const std::string& identity,
                       const std::string& spec) {
  return store + "/" + identity + kCohorts + "/" + hexOf(spec);
}

// The file with the digest of the run spec of a relay.
std::string specFile(const std::string& store, const std::string& identity, const std::string& id) {
  return store + "/" + identity + kCohorts + "/" + hexOf(sha256Of("id " + id));
}

// The ids of the runs of the members that have ended the cohort's last run, one per line.
std::string doneFile(const std::string& store, const std::string& identity,
                     const std::string& spec) {
  return cohortFile(store, identity, spec) + ".done";
}

void keepRunId(const std::string& store, const StoreRequest& request) {
  diskFiles().makeFolder(store + "/" + request.identity + kCohorts);
  diskFiles().write(cohortFile(store, request.identity, request.spec), request.hello.run_id());
  if (!request.cohort->isRelay) return;
  const std::string id = runSpecFromWire(request.hello.run_spec()).cohort.id;
  diskFiles().write(specFile(store, request.identity, id), hexOf(request.spec));
}

// The run of the cohort whose records are wanted.
std::string runIdOf(const std::string& store, const StoreRequest& request) {
  const std::string& own = request.hello.run_id();
  if (!request.cohort->hasBegun) return own;
  const auto stored = diskFiles().read(cohortFile(store, request.identity, request.spec));
  if (!stored && request.cohort->isOwners) return own;
  if (!stored) throw noRecords();
  checkRunId(*stored);
  return *stored;
}

LastConnection loadConnection(const CheckpointStore& store, const std::string& runId) {
  const auto stored = store.connections();
  if (!stored) throw badConnections(runId);
  if (stored->generation == 0) return {};
  if (stored->servers.size() != 1 || stored->servers[0].accepted.size() != 1) {
    throw badConnections(runId);
  }
  return {stored->generation, stored->servers[0].accepted[0]};
}

// Returns what was stored: the Hello's connection, with a generation above the last one's.
LastConnection saveConnection(CheckpointStore& store, const wire::Hello& hello,
                              const LastConnection& last) {
  LastConnection next = connectionOf(hello);
  next.generation = std::max(next.generation, std::min(last.generation + 1, kMaxGeneration - 1));
  store.setConnections({next.generation, {{.accepted = {next.id}, .sent = {}}}});
  return next;
}

}  // namespace

RunStore::RunStore(const ServerSettings& settings, const Access& access,
                   const ComputeDevice& compute, std::shared_ptr<Metrics> metrics,
                   boost::asio::any_io_executor io)
    : settings_(settings),
      access_(access),
      compute_(compute),
      metrics_(std::move(metrics)),
      io_(std::move(io)),
      lock_(makeStore(settings.store)),
      disk_(settings.store, settings.diskReserveBytes,
            [store = settings.store](const std::string& identity, std::size_t wanted) {
              return removeFinishedCheckpoints(diskFiles(), store + "/" + identity, wanted);
            }),
      weights_(
          std::make_shared<WeightsStore>(diskFiles(), settings.store, settings.keepWeightsBytes)),
      usage_(settings.keepUsage ? usageFolder(settings.store) : "", folders_.get_executor()) {}

std::string RunStore::folderOf(const std::string& identity, const std::string& runId) const {
  return settings_.store + "/" + identity + "/" + runId;
}

std::uint64_t RunStore::recordedStep(const std::string& folder) {
  writeRows();  // rows of an earlier connection may still wait
  return lastRecordedStep(folder).step;
}

void RunStore::writeRows() {
  try {
    recorder_.flush();
  } catch (const Error&) {
    // Each run checks its own files (RunRecord).
  }
}

void RunStore::whenWritten(std::function<void()> then) {
  boost::asio::post(folders_, [this, then = std::move(then)] {
    writeRows();
    then();
  });
}

boost::asio::awaitable<StoredRun> RunStore::open(const StoreRequest& request) {
  const std::string& identity = request.identity;
  const wire::Hello& hello = request.hello;
  const auto toThread = [this](auto task) { boost::asio::post(folders_, std::move(task)); };
  std::string runId = hello.run_id();
  if (request.cohort) {
    co_await runThrough(io_, toThread, [&] { runId = runIdOf(settings_.store, request); });
  }
  StoredRun run;
  run.disk =
      disk_.open(identity, access_.of(identity).diskBytes.value_or(settings_.share.diskBytes));
  if (request.samplesBytes > 0) {
    run.samplesSpace = std::make_shared<const UnnamedSpace>(run.disk, request.samplesBytes);
  }
  const std::string folder = folderOf(identity, runId);
  // JSON is also valid YAML.
  const std::string specText = "run_spec: " + toJson(runSpecFromWire(hello.run_spec())).dump();
  const auto onDisk = [&] {
    CheckpointStore store(diskFiles(), folder);
    const LastConnection last = loadConnection(store, runId);
    const bool isNew = last.generation == 0;
    if (isNew) {
      if (request.cohort && !request.cohort->isOwners) throw noRecords();
      makeServersFolder(folder);
    } else if (!request.cohort && !hello.take_over()) {
      checkContinues(hello, last);
    }
    run.lock = lockRunFolder(folder);
    if (!isNew) unmarkFinished(diskFiles(), folder);
    // This is the first file of the folder. It marks a run that can be continued.
    run.connection = saveConnection(store, hello, last);
    if (isNew) {
      run.disk->take(DiskShare::kRunBytes);
      writeRunDescription(folder, settings_.resolved + specText + "\n", request.threads,
                          compute_.description());
    }
    if (request.cohort && !request.cohort->hasBegun) keepRunId(settings_.store, request);
    run.disk->giveBack(store.removeIncomplete());
    if (!isNew) run.recordedStep = recordedStep(folder);
    run.log = fileLog(folder + "/log.txt");
    run.files = std::make_shared<RunFiles>(
        recorder_, folder, RunIdentity{runId, request.session, run.connection.generation},
        std::vector<std::string>{}, settings_.rotateBytes, run.disk, !isNew);
    run.weights = weightsOf(identity, hello.weights_sha256(), request.maxWeightsBytes, run);
    if (request.cohort && request.cohort->isRelay) {
      run.turns = std::make_shared<TurnStore>(folder, run.disk, checkpoints_.get_executor());
    }
    if (!settings_.allowCheckpoints) return;
    const std::string fingerprint = fingerprintOf(request.threads, compute_.description());
    // Checks all of them: with several servers, the newest one may be damaged on another server.
    for (const wire::Commit& commit : request.commits) {
      const auto found = store.find(commit.step(), commit.sha256());
      if (!found) continue;
      run.available.push_back(commit);
      run.isExact = run.isExact && found->fingerprint == fingerprint;
    }
    run.checkpoints =
        std::make_shared<RunCheckpoints>(std::move(store), run.disk, request.spec, fingerprint,
                                         recorder_, run.files, checkpoints_.get_executor());
  };
  co_await runThrough(io_, toThread, onDisk);
  run.files->observe(metrics_);
  co_return run;
}

std::shared_ptr<RunWeights> RunStore::weightsOf(const std::string& identity,
                                                const std::string& sha256, std::uint64_t maxBytes,
                                                const StoredRun& run) {
  if (maxBytes == 0 || !weights_->isEnabled()) return nullptr;
  return std::make_shared<RunWeights>(
      RunWeights::Context{.store = weights_,
                          .identity = identity,
                          .sha256 = sha256,
                          .stored = weights_->find(identity, sha256, maxBytes),
                          .disk = run.disk,
                          .log = run.log,
                          .reading = reading_.get_executor(),
                          .writing = checkpoints_.get_executor()});
}

boost::asio::awaitable<std::optional<TurnRecord>> RunStore::readTurns(const std::string& identity,
                                                                      const std::string& spec,
                                                                      const std::string& id) {
  std::optional<TurnRecord> record;
  const auto onDisk = [&] {
    const auto begun = diskFiles().read(specFile(settings_.store, identity, id));
    if (begun && *begun != hexOf(spec)) {
      throw UsageError(
          "other-member",
          "the cohort has begun with another model, other codecs or other settings of "
          "the training than this member has",
          "use the same configuration and model file for all members of the cohort, or "
          "begin a new one with another cohort.id")
          .about("cohort.id");
    }
    const auto runId = diskFiles().read(cohortFile(settings_.store, identity, spec));
    if (!runId) return;
    checkRunId(*runId);
    record = readTurnRecord(folderOf(identity, *runId));
  };
  const auto toThread = [this](auto task) { boost::asio::post(folders_, std::move(task)); };
  co_await runThrough(io_, toThread, onDisk);
  co_return record;
}

boost::asio::awaitable<bool> RunStore::isDoneWithout(const std::string& identity,
                                                     const std::string& spec,
                                                     const std::string& runId) {
  std::optional<std::string> runIds;
  const auto onDisk = [&] { runIds = diskFiles().read(doneFile(settings_.store, identity, spec)); };
  const auto toThread = [this](auto task) { boost::asio::post(folders_, std::move(task)); };
  co_await runThrough(io_, toThread, onDisk);
  co_return runIds && ("\n" + *runIds).find("\n" + runId + "\n") == std::string::npos;
}

void RunStore::cohortIsDone(const std::string& identity, const std::string& spec,
                            const std::vector<std::string>& runIds) {
  std::string lines;
  for (const std::string& runId : runIds) lines += runId + "\n";
  boost::asio::post(folders_, [this, identity, lines = std::move(lines),
                               file = doneFile(settings_.store, identity, spec)] {
    try {
      if (lines.empty()) return diskFiles().remove(file);
      diskFiles().makeFolder(settings_.store + "/" + identity + kCohorts);
      diskFiles().write(file, lines);
    } catch (const Error&) {
      // A member that comes too late waits for the others until its user stops it.
    }
  });
}

boost::asio::awaitable<LastConnection> RunStore::storeConnection(const std::string& identity,
                                                                 const wire::Hello& hello) {
  const std::string folder = folderOf(identity, hello.run_id());
  LastConnection stored;
  // Another client may have continued the run in the meantime.
  const auto onDisk = [&] {
    CheckpointStore store(diskFiles(), folder);
    const LastConnection last = loadConnection(store, hello.run_id());
    if (last.generation == 0) throw badConnections(hello.run_id());  // the file was removed
    checkContinues(hello, last);
    stored = saveConnection(store, hello, last);
  };
  const auto toThread = [this](auto task) { boost::asio::post(folders_, std::move(task)); };
  co_await runThrough(io_, toThread, onDisk);
  co_return stored;
}

}  // namespace cleave
