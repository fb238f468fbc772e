// The client's side of a connected run, with a link to each server of the run. The thread that
// calls it is the device thread; for this thread, a batch is one synchronous call.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "client/run/server_link.h"
#include "common/device/compute_device.h"
#include "common/engine/coordinator.h"
#include "common/engine/worker.h"
#include "common/link/tensor_link.h"
#include "common/net/streams/io_thread.h"
#include "common/predict/step_meter.h"
#include "common/record/run_files.h"
#include "common/resources/codec_executor.h"
#include "common/resources/executor.h"
#include "common/run/metrics.h"
#include "common/run/plan.h"

namespace cleave {

// Time limit after Ctrl-C for finishing the current step and fetching the body's weights.
// Supervisors such as docker kill a process 10 s after SIGTERM.
inline constexpr std::chrono::seconds kLastWork{7};

class ClientSession {
 public:
  // The device is borrowed.
  explicit ClientSession(ComputeDevice& compute);
  ~ClientSession();
  ClientSession(const ClientSession&) = delete;
  ClientSession& operator=(const ClientSession&) = delete;

  // Connects to the servers and shakes hands. `servers`: in the order of their bodies. If a
  // connection breaks later, the run continues over a new one. Later calls that wait for the
  // servers throw RunError "no-progress" after ConnectOptions::progressSeconds without a step or a
  // byte of progress. Throws RunError or UsageError with
  // the cause of the failure or with a server's refusal. Throws "interrupted" immediately on
  // Ctrl-C. After an exception, the session cannot be used.
  void connect(std::vector<ServerRequest> servers, const ConnectOptions& options);

  // The lowest SNR of the tensors that the client has sent or received in the steps of
  // RunSpec::watchEvery since the last call, in dB; nullopt: no tensor had an error. Call between
  // batches.
  std::optional<double> takeLowestSnr();
  // Sets a batch's level: see CodecLevels. Call before the batch begins.
  void setCodecLevel(Phase phase, std::uint64_t step, CodecLevel level) {
    levels_->set(phase, step, level);
  }

  // Called on the io thread with each Saved message of a server.
  using SavedFunction = std::function<void(std::size_t server, const Saved& saved)>;
  // Connects the stage's actions to the connections. `plan`: the client's; `plans`: one per server.
  // The actions in `table` run on the thread that calls runBatch(). If `saved` is empty, the run
  // makes no checkpoints. `observers`: see what crosses; borrowed.
  // `stateBytes`: maximum size of the state that another member sends; 0: none does.
  void start(const RunPlan& plan, const std::vector<RunPlan>& plans, std::uint32_t errorEvery,
             ActionTable table, StepFetch stepFetch, std::shared_ptr<RunFiles> files,
             SavedFunction saved = nullptr, std::vector<TrafficObserver*> observers = {},
             std::uint64_t stateBytes = 0);

  // Continues from a checkpoint after the stage has been restored from it, and waits until the
  // servers have restored their parts. Requires that the servers have a checkpoint. Throws
  // RunError.
  void resume(const EngineState& state, std::vector<TensorCodecs::SavedState> codecs);
  // In a cohort: `function` is called with the names of the other members whose connections have
  // broken, when they change, during a later call that waits.
  void onMissing(std::function<void(const std::vector<std::string>& members)> function) {
    missingFunction_ = std::move(function);
  }
  // In a cohort, instead of restoring the stage from its own checkpoint: waits for the state that
  // another member sends. Requires `stateBytes` in start(). Throws RunError.
  Blob waitForState();
  // Sends this member's state to those that join. Call before resume().
  void sendState(SharedBytes state);
  // In a relay: passes this member's sealed state after the last step to the server, and waits
  // until it is durable there. Throws RunError.
  void handOver(std::uint64_t step, SharedBytes state);
  // Passes the codecs' states after the last step to `saved`, which is called in the codec queue.
  // `since`: see TensorCodecs::save(). Call between batches.
  void saveCodecs(std::uint64_t since, std::function<void(SavedCodecs saved)> saved);
  // Any thread. Tells the first server of a cohort that this member's part of a checkpoint is
  // durable, or could not be saved.
  void reportSaved(const Saved& saved);
  // Whether Ctrl-C was pressed.
  bool isInterrupted() const { return interrupted_; }
  // Whether the client should make a checkpoint and leave, because the server is about to shut
  // down, or another member of the cohort leaves or joins.
  bool isDraining() const { return drained_ != Drained::no; }
  // Whether only another member is the reason.
  bool isDrainedByMember() const { return drained_ == Drained::byMember; }
  // The error with which the run's attempt then ends.
  RunError drainedError() const;
  // Whether the time is up that Ctrl-C leaves for the last work.
  bool isTimeUp() const { return timeIsUp_; }
  // Whether a link has ended, so that this session cannot continue the run.
  bool hasEnded() const { return linksEnded_ > 0; }
  // Throws the error with which it has ended, if any.
  void throwIfEnded() const;

  // Sends a body's initial weights. Call waitForBodies() afterwards.
  void sendWeights(std::size_t server, SharedBytes weights);
  // Waits until all bodies have their weights. Throws RunError.
  void waitForBodies();
  // Sends the numbers of a training batch's samples to the servers whose codecs need them. Call
  // before runBatch().
  void sendSamples(std::uint64_t step, const std::vector<std::uint32_t>& numbers);
  // Runs one batch to its end. If the run ended, throws RunError with the cause, such as a lost
  // connection. After Ctrl-C the batches have kLastWork to finish. If the run makes no checkpoints,
  // no batch begins after Ctrl-C ("interrupted"), or if a server is about to shut down
  // ("shutting-down").
  void runBatch(const MicroBatch& at);
  // The two halves of runBatch(), for training steps that overlap. beginBatch() requires
  // mayBegin(). finishBatch() waits until the oldest batch in progress has ended.
  bool mayBegin(const MicroBatch& at) const { return engine_->mayBegin(at); }
  void beginBatch(const MicroBatch& at);
  void finishBatch();
  // Waits until the servers have applied all steps, then fetches weights/body or trace/body from
  // each.
  std::vector<Blob> fetch(Flow flow);
  // What `stepFetch` in start() wanted from each server for the training step that is being
  // decided. Call within the decision.
  std::vector<Blob> blobsOfStep() const { return *blobs(); }
  // Call between batches. Requests weights/body of all bodies after the last step (those of the
  // first of a body's replicas, which are equal), and returns immediately. `arrived` is called
  // during a later call on this session that waits. Only one request is allowed at a time. Throws
  // RunError "interrupted" if Ctrl-C was pressed and the current batch did not finish in time.
  void fetchWeights(std::function<void(std::vector<Blob> bodies)> arrived);
  bool isFetchingWeights() const { return weightsArrived_ != nullptr; }
  // Waits until the weights requested by fetchWeights() have arrived. After Ctrl-C, waits for
  // kLastWork at most.
  void waitForWeights();
  // Sends Bye and waits until the connections have ended; afterwards totals() are final. If start()
  // was not called, the session cannot be used afterwards.
  void close(const std::string& reason);

  const Coordinator& engine() const { return *engine_; }
  std::size_t serverCount() const { return servers_.size(); }
  // After connect(): a server's answer to the Hello.
  const wire::HelloOk& answer(std::size_t server) const { return servers_[server]->answer(); }
  // Sums over all links. A tensor that is passed on from one server to the next counts on both
  // links.
  LinkTotals totals() const;
  // Returns the values for the client's metrics endpoint. Call it after start(). Waits for the io
  // thread, so call it on another thread.
  Samples samples(const Recorder& recorder, const TlsContext* tls);
  // Seconds between the two latest training steps; see EngineWorker.
  std::optional<double> betweenSteps() const { return worker_->betweenSteps(); }
  // The estimated speed of each link: for each direction, the lower of the two sides' estimates.
  // The server's estimates are from the last step.
  std::vector<LinkSpeed> linkSpeeds() const;
  // The offset of a server's clock, estimated from the latest Pongs. A Ping is sent at the start of
  // each batch.
  ClockSample serverClock(std::size_t server) const { return servers_[server]->tensors().clock(); }
  // The client's traces, one per server: each has the spans of that server's link, and the first
  // one also those of actions. Empty if the plan requests no trace.
  const std::vector<std::shared_ptr<TraceRecorder>>& traces() const { return traces_; }
  const std::shared_ptr<BufferPool>& pool() const { return pool_; }

 private:
  boost::asio::awaitable<void> waitForSignals();
  ServerLink::Callbacks callbacksFor(std::size_t server, std::shared_ptr<Mailbox> mailbox,
                                     SavedFunction saved);
  // What ends a wait besides the end of a connection: Ctrl-C, or the time limit kLastWork after
  // Ctrl-C.
  enum class Patience : std::uint8_t { untilInterrupted, untilTimeIsUp };
  void waitUntil(const std::function<bool()>& done, Patience patience = Patience::untilInterrupted);
  boost::asio::awaitable<void> tick();
  bool isConnected() const;
  [[noreturn]] void throwWithoutProgress() const;
  [[noreturn]] void rethrow(const std::exception_ptr& error) const;  // or its cause
  void leave();
  void request(Flow flow);
  std::optional<std::vector<Blob>> blobs() const;
  void handOverWeights();
  void reportMissing();
  bool answersHandOver(const Saved& saved);
  void receiveDrain(const Drain& drain, std::size_t server);
  void linkEnded(std::exception_ptr error);

  ComputeDevice& compute_;
  DeviceExecutor device_;
  const std::shared_ptr<BufferPool> pool_;
  const std::unique_ptr<ForkJoinPair> helper_ = makeForkJoinPair();  // used by the codec thread
  CodecExecutor codecs_{1};
  IoThread io_;
  boost::asio::signal_set signals_;
  boost::asio::steady_timer lastWork_, tick_;  // io thread
  const std::shared_ptr<ProgressCount> progress_ = std::make_shared<ProgressCount>(0);
  std::function<void()> findCause_;  // see ConnectOptions
  double progressSeconds_ = 0;       // how long to wait without progress; 0: forever
  std::vector<std::unique_ptr<ServerLink>> servers_;  // in the order of the bodies
  std::vector<Place> places_;                         // of their bodies
  bool hasEdges_ = false;                             // between the servers
  std::vector<Replica> replicas_;                     // by server: which replica of its body
  std::shared_ptr<RunFiles> files_;
  bool makesCheckpoints_ = false;
  enum class Drained : std::uint8_t { no, byServer, byMember };
  std::atomic<Drained> drained_ = Drained::no;
  Drain drain_;  // that of a member; guarded by mutex_
  // Whether Ctrl-C asks the member of the cohort that decides for a checkpoint.
  std::atomic<bool> asksForCheckpoint_ = false;
  std::shared_ptr<EngineWorker> worker_;
  Coordinator* engine_ = nullptr;  // owned by worker_
  std::uint64_t finished_ = 0;     // number of calls of finishBatch()
  std::vector<std::shared_ptr<TraceRecorder>> traces_;
  const std::shared_ptr<CodecLevels> levels_ = std::make_shared<CodecLevels>();

  std::vector<std::optional<Blob>> weights_;  // requested weights that have arrived, by server
  // Empty if no weights are requested.
  std::function<void(std::vector<Blob> bodies)> weightsArrived_;

  std::function<void(const std::vector<std::string>& members)> missingFunction_;
  bool failed_ = false;  // device thread: an action failed, and no more actions run
  std::atomic<bool> interrupted_ = false;
  std::atomic<bool> timeIsUp_ = false;       // kLastWork has passed since Ctrl-C
  std::atomic<std::size_t> linksEnded_ = 0;  // if it is not 0, the run cannot continue
  mutable std::mutex mutex_;
  std::exception_ptr error_;  // the first error
  std::optional<double> lowestSnr_;
  std::optional<Blob> state_;                        // see waitForState()
  std::optional<std::vector<std::string>> missing_;  // until reportMissing()
  // Of the step that handOver() waits for, then the server's answer.
  std::optional<std::uint64_t> handedOver_;
  std::optional<Saved> handOverSaved_;
};

}  // namespace cleave
