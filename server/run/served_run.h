// A run or a trial on the server, from its admission to its end. A session is one connection to the
// run's client. A run whose connection broke is parked: it keeps its state until a new connection
// continues it.
#pragma once

#include <spdlog/logger.h>

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/core/buffer.h"
#include "common/core/codec_executor.h"
#include "common/core/environment.h"
#include "common/core/executor.h"
#include "common/core/fault_notes.h"
#include "common/core/fork_join_pair.h"
#include "common/device/compute_device.h"
#include "common/engine/participant.h"
#include "common/engine/trace.h"
#include "common/engine/worker.h"
#include "common/link/tensor_link.h"
#include "common/link/trial.h"
#include "common/model/stage.h"
#include "common/net/connection.h"
#include "common/run/action_tables.h"
#include "common/run/plan.h"
#include "proto/wire.pb.h"
#include "server/config/settings.h"
#include "server/run/admission.h"
#include "server/run/run_edges.h"
#include "server/run/run_replicas.h"
#include "server/run/session_lines.h"
#include "server/status/status.h"
#include "server/status/throughput_meter.h"
#include "server/store/run_record.h"
#include "server/store/run_store.h"
#include "server/store/usage.h"
#include "stage/remote_body.h"

namespace cleave {

// Resources shared by all runs; they outlive the runs.
struct RunResources {
  const ServerSettings& settings;
  ComputeDevice& compute;
  DeviceExecutor& device;
  boost::asio::any_io_executor io;
  std::shared_ptr<BufferPool> pool;
  CodecExecutor& codecs;
  ForkJoinPair* helper;  // shared by all codec threads; null: none
  RunStore& store;
  SessionLines& lines;
  const ServerCertificates& certificates;
  const ReplicaGroup* replicas;      // null: this server is not configured with replicas
  StageProcesses* stages = nullptr;  // null: stages compute in this process, as on a GPU
};

// A client's request for a run.
struct RunRequest {
  wire::Hello hello;
  RunSpec spec;  // the run spec of the Hello
  std::string identity;
  std::uint64_t session = 0;   // number of the session that received it
  bool clientIsLocal = false;  // the client also uses this machine's processors

  const std::string& runId() const { return hello.run_id(); }
  // A trial of codecs: it leaves no records, and its weights cannot be fetched.
  bool isTrial() const { return hello.kind() == wire::Hello::TRIAL; }
};

// An admitted run. Call open(), start(), serve() for each connection, and close(), in this order;
// call close() also if another function throws. io thread. Stage and engine are built, used and
// destroyed on the device thread.
class ServedRun {
 public:
  // `ended` is called on the io thread if the run ends while it is parked.
  ServedRun(const RunResources& resources, RunRequest request, RunPlan plan,
            std::unique_ptr<Admission::Ticket> ticket,
            std::function<void(std::exception_ptr)> ended);
  ~ServedRun();

  // Opens the run's records, and creates its link and its worker. The worker's first action builds
  // the model. Throws Error.
  boost::asio::awaitable<void> open();
  // Uses this connection from now on, and closes the previous one. `request`: the request received
  // over the new connection: the admitted one, or one that continues the run. Call after open().
  // Throws ProtocolError "bad-arrived".
  void attach(const RunRequest& request, std::shared_ptr<Connection> connection);
  // Stores the connection of a Hello that continues the run, before it is attached.
  // `hello` must outlive the call. Throws RunError "stale-generation".
  boost::asio::awaitable<void> storeConnection(const wire::Hello& hello);
  // The answer to the Hello of the connection that was attached last.
  wire::HelloOk helloOk() const;
  // Describes the run for the log. Call after open().
  std::string summary() const;
  // Starts processing the client's messages. Call after the first attach().
  void start();
  // Serves the connection until it ends. Returns the reason of the client's Bye, or throws the
  // error that ended the connection.
  boost::asio::awaitable<std::string> serve();
  // Call when the connection has broken. The run then waits for another one.
  void park();
  bool isParked() const { return link_ && !link_->connection(); }
  // Whether the run may be parked, instead of closed, when its connection breaks.
  bool mayPark() const { return isServing_ && !isTrial_ && !isDraining_ && !*hasFailed_; }
  // Waits until all computation of the run has stopped, and completes its records. The run's memory
  // is in use until then. The connection must have ended.
  boost::asio::awaitable<void> close();
  // Call when the client has sent "done": at most the last checkpoint is still needed.
  void finish();

  // Ends the run with this error, which is sent to the client if it is connected.
  void end(std::exception_ptr error);
  // Asks the client to make a checkpoint and then disconnect.
  void drain();
  // Records how the run ended. Only the first call has an effect.
  void completeRecords();
  // Logs to the run's own log and, unless its identity has logged too many lines, to the server's.
  void log(spdlog::level::level_enum level, const std::string& line);

  const RunRequest& request() const { return request_; }
  // The connection that was stored last, or that will be stored first.
  const LastConnection& lastConnection() const { return last_; }
  std::uint64_t session() const { return session_; }
  // The edge before the body, if there is one with this token; else null.
  std::shared_ptr<RunEdge> edge(const std::string& token) const {
    return link_ ? edges_.find(token) : nullptr;
  }
  // When something other than a Ping last crossed an edge; nullopt: no edge is connected.
  std::optional<SteadyTime> edgeActivity() const {
    return link_ ? edges_.lastActivity() : std::nullopt;
  }
  // A random number, never 0. A Hello with this token continues the run.
  std::uint64_t token() const { return token_; }
  // Whether the client may be waiting for the server: the server has work for the run, or is
  // opening or closing it.
  bool hasWork() const;
  std::size_t mailboxEntries() const { return isServing_ ? worker_->waiting() : 0; }
  // The usage since the last call.
  Usage takeUsage() { return usage_.take(link_ ? totals() : LinkTotals()); }
  // Fills in the run's values.
  void describe(SessionStatus& status) const;

 private:
  boost::asio::awaitable<void> openRecords();
  std::shared_ptr<TensorLink> makeLink();
  void edgeFailed(const RunError& error);
  LinkTotals totals() const;
  void saveCodecs(std::uint64_t since, std::function<void(SavedCodecs saved)> saved) const;
  void restoreCodecs(std::vector<TensorCodecs::SavedState> states) const;
  std::shared_ptr<EngineWorker> makeWorker();
  std::unique_ptr<Body> makeBody();             // device thread
  ActionTable build();                          // device thread
  void snapshot(const StepDecision& decision);  // device thread
  void saveSnapshot();                          // device thread
  EngineState restore(const Resume& resume);    // device thread
  bool isSaving() const { return !saving_.expired(); }
  bool isInGroup() const { return replicas_ && replicas_->isBusy(); }
  bool resumes() const { return request_.hello.committed_size() > 0; }
  // Whether the Hello contains the digest of initial weights that the client would send.
  bool namesWeights() const {
    return request_.spec.initialWeights && !isTrial_ && !resumes() &&
           !request_.hello.weights_sha256().empty();
  }
  bool hasStoredWeights() const { return stored_.weights && stored_.weights->areStored(); }
  bool isUsingWeightsStore() const { return stored_.weights && stored_.weights->isBusy(); }
  void loadStoredWeights();
  ReduceFunction reduceFunction();
  Result importAndKeep(const ActionFunction& import, Work work);  // device thread
  void finishedBatch();                                           // device thread
  bool mayFetchWeights() const { return resources_.settings.fetchWeights && !isTrial_; }
  boost::asio::awaitable<void> closeWorker();
  // Ends the run with an error, from any thread.
  std::function<void(std::exception_ptr)> failWith(std::shared_ptr<TensorLink> link) const;

  const RunResources& resources_;
  const RunRequest request_;
  const bool isTrial_;
  RunPlan plan_;
  const std::unique_ptr<Admission::Ticket> ticket_;
  const std::function<void(std::exception_ptr)> ended_;
  const std::shared_ptr<spdlog::logger> serverLog_;
  const std::uint64_t token_;
  const std::string spec_;  // digestOf() its run spec
  LastConnection last_;     // of a trial: none
  std::uint64_t session_;
  std::optional<Arrived> arrived_;  // counts before the last attach(); nullopt before the first one
  ThreadCount threads_;
  StoredRun stored_;
  std::shared_ptr<RunRecord> record_;
  std::shared_ptr<CodecQueue> codecQueue_;
  std::shared_ptr<TraceRecorder> trace_;  // null: none
  std::shared_ptr<MemoryAccount> account_;
  std::shared_ptr<Mailbox> mailbox_;
  std::optional<StageMemory> stageMemory_;  // if the stage computes in another process
  std::weak_ptr<const void> process_;       // that process, until it has ended
  std::shared_ptr<TensorLink> link_;        // to the client
  RunEdges edges_;
  std::shared_ptr<RunReplicas> replicas_;  // null: the body has no replicas
  std::unique_ptr<Body> body_;
  std::shared_ptr<EngineWorker> worker_;
  ThroughputMeter pace_;
  UsageMeter usage_;
  std::uint64_t batches_ = 0;                           // device thread; counted only for trials
  std::shared_ptr<RunCheckpoints::Snapshot> snapshot_;  // device thread: not saved yet
  // Used by the thread that writes the run's checkpoints.
  const std::shared_ptr<FaultNotes> checkpointFaults_ = std::make_shared<FaultNotes>();
  std::weak_ptr<RunCheckpoints::Snapshot> saving_;  // the last one, until it is saved
  std::uint64_t applied_ = 0;  // number of updates, set when the worker is closed
  // Set before an error of the run reaches the link, which may already have failed for another
  // reason.
  const std::shared_ptr<std::atomic<bool>> hasFailed_ = std::make_shared<std::atomic<bool>>(false);
  bool isServing_ = false;  // the worker runs
  bool isDraining_ = false;
  std::exception_ptr endError_;  // set if end() was called before the link existed
};

}  // namespace cleave
