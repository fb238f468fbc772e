// The client's side of a run while it is connected. The thread that calls it is the device thread;
// to that thread a batch looks like one call.
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

#include "client/connect.h"
#include "common/core/codec_executor.h"
#include "common/core/executor.h"
#include "common/model/compute_device.h"
#include "common/net/io_thread.h"
#include "common/pipeline/run_files.h"
#include "common/pipeline/step_meter.h"
#include "common/pipeline/tensor_link.h"
#include "common/pipeline/worker.h"
#include "daemon/metrics.h"
#include "daemon/plan.h"

namespace cleave {

// After Ctrl-C, for the step under way and the body's weights. Supervisors such as docker kill a
// process 10 s after their SIGTERM.
inline constexpr std::chrono::seconds kLastWork{7};

class ClientSession {
 public:
  // The device is borrowed.
  explicit ClientSession(ComputeDevice& compute);
  ~ClientSession();
  ClientSession(const ClientSession&) = delete;
  ClientSession& operator=(const ClientSession&) = delete;

  // Connects, trying again with back-off for `retrySeconds`, and shakes hands. Throws RunError or
  // UsageError: what made it impossible, or the server's refusal; "interrupted", at once, after
  // which the session is of no use.
  wire::HelloOk connect(const ServerAddress& address, const wire::Hello& hello,
                        double retrySeconds);

  // Joins the stage's actions to the connection. `table` is called on the thread that calls
  // runBatch().
  void start(const RunPlan& plan, std::uint32_t errorEvery, ActionTable table, bool fetchGradients,
             std::shared_ptr<RunFiles> files);

  // Sends the body's initial weights, and waits until they are in place there. Throws RunError.
  void sendWeights(SharedBytes weights);
  // Runs one batch to its end. Throws RunError: whatever ended the run, such as the server's end or
  // Ctrl-C ("interrupted"), after which the batch under way has kLastWork to end.
  void runBatch(const MicroBatch& at);
  // Waits until the server has applied all steps, and fetches weights/body or trace/body.
  Blob fetch(Flow flow);
  // Between batches: asks for weights/body as they are after the last step, and returns at once.
  // `arrived` is called within a later call of this session that waits. One at a time. Throws
  // RunError "interrupted" if Ctrl-C came in the middle of a batch that has not ended in time.
  void fetchWeights(std::function<void(Blob body)> arrived);
  bool isFetchingWeights() const { return weightsArrived_ != nullptr; }
  // Waits until what fetchWeights() asked for has arrived; for at most kLastWork after Ctrl-C.
  void waitForWeights();
  // Says Bye and waits for the connection's end; afterwards totals() are final. Does nothing where
  // it has ended already.
  void close(const std::string& reason);

  const Engine& engine() const { return worker_->engine(); }
  LinkTotals totals() const;
  // For the client's metrics, once it has started; waits for the io thread. Not on that; any other
  // thread.
  Samples samples(const Recorder& recorder, const TlsContext* tls);
  // Of the step begun last, as EngineWorker says.
  std::optional<double> betweenSteps() const { return worker_->betweenSteps(); }
  // The downlink's rate is what the server said of the last step.
  LinkSpeed linkSpeed() const;
  // The server's, as the Pongs of the last batches say: one is asked for as each begins.
  ClockSample serverClock() const { return connection_->clock(); }
  // Null where the plan has no trace.
  const TraceRecorder* trace() const { return trace_.get(); }
  const std::shared_ptr<BufferPool>& pool() const { return pool_; }

 private:
  boost::asio::awaitable<void> waitForSignals();
  // What ends a wait, beside the connection's end: Ctrl-C, or the end of kLastWork after it.
  enum class Patience : std::uint8_t { untilInterrupted, untilTimeIsUp };
  void waitUntil(const std::function<bool()>& done, Patience patience = Patience::untilInterrupted);
  void handOverWeights();
  void end(std::exception_ptr error);

  ComputeDevice& compute_;
  DeviceExecutor device_;
  const std::shared_ptr<BufferPool> pool_;
  const std::unique_ptr<Helper> helper_ = makeHelper();  // of the codec thread
  CodecExecutor codecs_{1};
  IoThread io_;
  boost::asio::signal_set signals_;
  boost::asio::steady_timer lastWork_;  // io thread
  std::shared_ptr<Connection> connection_;
  std::shared_ptr<TensorLink> link_;
  std::shared_ptr<EngineWorker> worker_;
  std::shared_ptr<TraceRecorder> trace_;

  std::function<void(Blob body)> weightsArrived_;  // empty: none were asked for

  bool failed_ = false;  // device thread: an action has, so that none runs any more
  std::atomic<bool> interrupted_ = false;
  std::atomic<bool> timeIsUp_ = false;  // kLastWork has passed since
  std::atomic<bool> ended_ = false;     // the connection has; error_ is final
  std::mutex mutex_;
  std::exception_ptr error_;  // the first
};

}  // namespace cleave
