// The client's side of a connected run. The thread that calls it is the device thread; for this
// thread, a batch is one synchronous call.
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
#include <string>
#include <vector>

#include "client/train/connect.h"
#include "common/core/codec_executor.h"
#include "common/core/executor.h"
#include "common/device/compute_device.h"
#include "common/engine/coordinator.h"
#include "common/engine/worker.h"
#include "common/link/tensor_link.h"
#include "common/net/io_thread.h"
#include "common/predict/step_meter.h"
#include "common/record/run_files.h"
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

  struct ConnectOptions {
    double retrySeconds = 0;  // how long connect() retries, with back-off
    // How long to retry if the connection breaks later; 0: the run then ends.
    double reconnectSeconds = 0;
    bool isRestart = false;  // connect() retries after all connection faults
    // Called on the io thread before each attempt to connect. Returns a higher generation each
    // time. If it is empty, the session counts the generation in memory.
    std::function<std::uint64_t()> nextGeneration = nullptr;
  };
  // Connects and shakes hands. If the connection breaks later, the run continues over a new
  // connection. Throws RunError or UsageError with the cause of the failure or with the server's
  // refusal. Throws "interrupted" immediately on Ctrl-C; the session cannot be used afterwards.
  wire::HelloOk connect(const ServerAddress& address, const wire::Hello& hello,
                        const ConnectOptions& options);

  // Connects the stage's actions to the connection. The actions in `table` run on the thread that
  // calls runBatch(). `saved` is called on the io thread with each Saved message. If it is empty,
  // the run makes no checkpoints.
  void start(const RunPlan& plan, std::uint32_t errorEvery, ActionTable table, bool fetchGradients,
             std::shared_ptr<RunFiles> files, std::function<void(const Saved&)> saved = nullptr);

  // Continues from a checkpoint after the stage has been restored from it, and waits until the
  // server has restored its part. Requires that the Hello had `committed`. Throws RunError.
  void resume(const EngineState& state, std::vector<TensorCodecs::SavedState> codecs);
  // Passes the codecs' states after the last step to `saved`, which is called in the codec queue.
  // Call between batches.
  void saveCodecs(std::function<void(std::vector<TensorCodecs::SavedState>)> saved) {
    link_->saveCodecs(std::move(saved));
  }
  // Whether Ctrl-C was pressed.
  bool isInterrupted() const { return interrupted_; }
  // Whether the server has announced that it is about to shut down.
  bool isServerDraining() const { return isServerDraining_; }

  // Sends the body's initial weights and waits until the server has loaded them. Throws RunError.
  void sendWeights(SharedBytes weights);
  // Like sendWeights(), but sends nothing. Use it if HelloOk.weights_stored says that the server
  // already has the weights.
  void waitForStoredWeights();
  // Runs one batch to its end. If the run ended, throws RunError with the cause, such as a lost
  // connection. After Ctrl-C the current batch has kLastWork to finish, and later calls throw
  // "interrupted" unless `isLast` is set. If the server is about to shut down and the run makes no
  // checkpoints, throws "shutting-down" before the batch.
  void runBatch(const MicroBatch& at, bool isLast = false);
  // Waits until the server has applied all steps, then fetches weights/body or trace/body.
  Blob fetch(Flow flow);
  // Call between batches. Requests weights/body after the last step, and returns immediately.
  // `arrived` is called during a later call on this session that waits. Only one request is allowed
  // at a time. Throws RunError "interrupted" if Ctrl-C was pressed and the current batch did not
  // finish in time.
  void fetchWeights(std::function<void(Blob body)> arrived);
  bool isFetchingWeights() const { return weightsArrived_ != nullptr; }
  // Waits until the weights requested by fetchWeights() have arrived. After Ctrl-C, waits for
  // kLastWork at most.
  void waitForWeights();
  // Sends Bye and waits until the connection has ended; afterwards totals() are final. Does nothing
  // if the connection has already ended.
  void close(const std::string& reason);

  const Coordinator& engine() const { return *engine_; }
  LinkTotals totals() const;
  // Returns the values for the client's metrics endpoint. Call it after start(), and never on the
  // io thread, for which it waits.
  Samples samples(const Recorder& recorder, const TlsContext* tls);
  // Seconds between the two latest training steps; see EngineWorker.
  std::optional<double> betweenSteps() const { return worker_->betweenSteps(); }
  // The estimated speed of the link: for each direction, the lower of the two sides' estimates. The
  // server's estimates are from the last step.
  LinkSpeed linkSpeed() const;
  // The offset of the server's clock, estimated from the latest Pongs. Each batch sends a Ping when
  // it begins.
  ClockSample serverClock() const { return link_->clock(); }
  // Null if the plan requests no trace.
  const TraceRecorder* trace() const { return trace_.get(); }
  const std::shared_ptr<BufferPool>& pool() const { return pool_; }

 private:
  boost::asio::awaitable<void> waitForSignals();
  boost::asio::awaitable<void> serve(std::shared_ptr<Connection> connection);
  boost::asio::awaitable<OpenConnection> reconnect(const Error& broken);
  bool mayReconnect(const Error& error) const;
  wire::Hello nextHello();
  void received(Message message, Mailbox& mailbox, const std::function<void(const Saved&)>& saved);
  // What ends a wait besides the end of the connection: Ctrl-C, or the time limit kLastWork after
  // Ctrl-C.
  enum class Patience : std::uint8_t { untilInterrupted, untilTimeIsUp };
  void waitUntil(const std::function<bool()>& done, Patience patience = Patience::untilInterrupted);
  void handOverWeights();
  void end(std::exception_ptr error);

  ComputeDevice& compute_;
  DeviceExecutor device_;
  const std::shared_ptr<BufferPool> pool_;
  const std::unique_ptr<ForkJoinPair> helper_ = makeForkJoinPair();  // used by the codec thread
  CodecExecutor codecs_{1};
  IoThread io_;
  boost::asio::signal_set signals_;
  boost::asio::steady_timer lastWork_;  // io thread
  ServerAddress address_;
  wire::Hello hello_;  // Hello of the last attempt to connect; after start(): io thread
  double reconnectSeconds_ = 0;
  std::function<std::uint64_t()> nextGeneration_;
  std::shared_ptr<RunFiles> files_;
  bool makesCheckpoints_ = false;
  bool resumes_ = false;  // the run continues from a checkpoint
  std::atomic<bool> isServerDraining_ = false;
  bool isClosing_ = false;                  // io thread
  std::shared_ptr<Connection> connection_;  // between connect() and start()
  std::shared_ptr<TensorLink> link_;
  std::shared_ptr<EngineWorker> worker_;
  Coordinator* engine_ = nullptr;  // owned by worker_
  std::shared_ptr<TraceRecorder> trace_;

  std::function<void(Blob body)> weightsArrived_;  // empty if no weights are requested

  bool failed_ = false;  // device thread: an action failed, and no more actions run
  std::atomic<bool> interrupted_ = false;
  std::atomic<bool> timeIsUp_ = false;  // kLastWork has passed since Ctrl-C
  std::atomic<bool> ended_ = false;     // the connection has ended; error_ is final
  std::mutex mutex_;
  std::exception_ptr error_;  // the first error
};

}  // namespace cleave
