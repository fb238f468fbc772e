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
#include "common/run/fingerprint.h"
#include "common/run/run_folder.h"
#include "common/run/run_spec.h"
#include "server/store/finished_runs.h"
#include "server/store/last_connection.h"
#include "server/store/on_thread.h"

namespace cleave {
namespace {

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

// Without the run's last connection, another client could not be refused, so the run cannot
// continue.
RunError badConnections(const std::string& runId) {
  return RunError("bad-checkpoint",
                  "the server's file with the last connection of the run " + runId + " is damaged",
                  "ask the server's operator for 'cleave-server runs remove " + runId +
                      "', then add --from-start to start over from step 0")
      .about("--resume");
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

boost::asio::awaitable<StoredRun> RunStore::open(const std::string& identity,
                                                 const wire::Hello& hello,
                                                 const std::vector<wire::Commit>& commits,
                                                 const std::string& spec, std::uint64_t session,
                                                 int threads, std::uint64_t maxWeightsBytes,
                                                 std::size_t samplesBytes) {
  StoredRun run;
  run.disk =
      disk_.open(identity, access_.of(identity).diskBytes.value_or(settings_.share.diskBytes));
  if (samplesBytes > 0) {
    run.samplesSpace = std::make_shared<const UnnamedSpace>(run.disk, samplesBytes);
  }
  const std::string folder = folderOf(identity, hello.run_id());
  // JSON is also valid YAML.
  const std::string specText = "run_spec: " + toJson(runSpecFromWire(hello.run_spec())).dump();
  const auto onDisk = [&] {
    CheckpointStore store(diskFiles(), folder);
    const LastConnection last = loadConnection(store, hello.run_id());
    const bool isNew = last.generation == 0;
    if (isNew) {
      makeServersFolder(folder);
    } else if (!hello.take_over()) {
      checkContinues(hello, last);
    }
    run.lock = lockRunFolder(folder);
    if (!isNew) unmarkFinished(diskFiles(), folder);
    // This is the first file of the folder. It marks a run that can be continued.
    run.connection = saveConnection(store, hello, last);
    if (isNew) {
      run.disk->take(DiskShare::kRunBytes);
      writeRunDescription(folder, settings_.resolved + specText + "\n", threads,
                          compute_.description());
    }
    run.disk->giveBack(store.removeIncomplete());
    if (!isNew) run.recordedStep = recordedStep(folder);
    run.log = fileLog(folder + "/log.txt");
    run.files = std::make_shared<RunFiles>(
        recorder_, folder, RunIdentity{hello.run_id(), session, run.connection.generation},
        std::vector<std::string>{}, settings_.rotateBytes, run.disk, !isNew);
    run.weights = weightsOf(identity, hello.weights_sha256(), maxWeightsBytes, run);
    if (!settings_.allowCheckpoints) return;
    const std::string fingerprint = fingerprintOf(threads, compute_.description());
    // Checks all of them: with several servers, the newest one may be damaged on another server.
    for (const wire::Commit& commit : commits) {
      const auto found = store.find(commit.step(), commit.sha256());
      if (!found) continue;
      run.available.push_back(commit.step());
      run.isExact = run.isExact && found->fingerprint == fingerprint;
    }
    run.checkpoints =
        std::make_shared<RunCheckpoints>(std::move(store), run.disk, spec, fingerprint, recorder_,
                                         run.files, checkpoints_.get_executor());
  };
  const auto toThread = [this](auto task) { boost::asio::post(folders_, std::move(task)); };
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
