#include "client/train/session.h"

#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <optional>
#include <utility>

#include "common/core/log.h"
#include "common/link/link_faults.h"
#include "common/link/wire_messages.h"

namespace cleave {
namespace {

namespace asio = boost::asio;

RunError endedByServer(const std::string& reason) {
  const char* hint = "restart the server, then rerun the command";
  if (reason != "shutting-down") {
    return RunError("server-left", "the server ended the run (" + reason + ")", hint);
  }
  return RunError("shutting-down", "the server is shutting down, after finishing the current step",
                  hint);
}

}  // namespace

ClientSession::ClientSession(ComputeDevice& compute)
    : compute_(compute),
      pool_(std::make_shared<BufferPool>(BufferPool::kMaxRetained, compute.hostMemory())),
      signals_(io_.context(), SIGINT, SIGTERM),
      lastWork_(io_.context()) {
  asio::co_spawn(io_.context(), waitForSignals(), [](std::exception_ptr error) {
    if (error) std::rethrow_exception(error);
  });
}

ClientSession::~ClientSession() {
  if (worker_) worker_->stop();
  io_.stop();
  codecs_.stop();
  // Destroyed before the threads and the io_context that they use.
  if (worker_) device_.detach(worker_);
  worker_.reset();
  link_.reset();
  connection_.reset();
}

// ---- Connecting ----

wire::HelloOk ClientSession::connect(const ServerAddress& address, const wire::Hello& hello,
                                     const ConnectOptions& options) {
  address_ = address;
  hello_ = hello;
  nextGeneration_ =
      options.nextGeneration ? options.nextGeneration : [this] { return hello_.generation() + 1; };
  OpenConnection open;
  std::exception_ptr error;
  std::atomic<bool> done = false;
  const auto firstHello = [this] {
    hello_.set_generation(nextGeneration_());
    return hello_;
  };
  const auto connectIt = options.isRestart ? reconnectToServer : connectToServer;
  asio::co_spawn(io_.context(), connectIt(address, firstHello, options.retrySeconds),
                 [&](std::exception_ptr failed, OpenConnection opened) {
                   error = std::move(failed);
                   open = std::move(opened);
                   done = true;
                   device_.notify();
                 });
  device_.runUntil([&] { return done || interrupted_; });
  if (!done) {
    io_.stop();  // abandons the pending connection; this session can no longer be used
    throw interruptedError();
  }
  if (error) std::rethrow_exception(error);
  connection_ = std::move(open.connection);
  hello_.set_token(open.ok.token());
  resumes_ = hello_.committed_size() > 0;
  hello_.clear_committed();
  hello_.clear_weights_sha256();
  if (open.ok.token() != 0) reconnectSeconds_ = options.reconnectSeconds;
  return std::move(open.ok);
}

// ---- The run ----

void ClientSession::start(const RunPlan& plan, std::uint32_t errorEvery, ActionTable table,
                          bool fetchGradients, std::shared_ptr<RunFiles> files,
                          std::function<void(const Saved&)> saved) {
  files_ = files;
  makesCheckpoints_ = saved != nullptr;
  TensorLinkOptions options = linkOptions(plan, Role::client);
  options.errorEvery = errorEvery;
  options.helper = helper_.get();
  options.codecQueue = codecs_.open();
  trace_ = options.trace;
  const auto mailbox = std::make_shared<Mailbox>(device_, plan.inFlight);
  link_ = std::make_shared<TensorLink>(
      std::move(options), pool_, io_.context().get_executor(),
      TensorLink::Callbacks{
          .deliver = [this, mailbox, saved = std::move(saved)](
                         Message message) { received(std::move(message), *mailbox, saved); },
          .record = [files](const TransferRecord& record) { files->transfer(record); },
          .failed =
              [this](std::exception_ptr error) {
                isClosing_ = true;
                end(std::move(error));
              },
      });
  EngineOptions engineOptionsOfRun = engineOptions(plan);
  engineOptionsOfRun.resumes = resumes_;
  auto engine = std::make_unique<Coordinator>(
      engineOptionsOfRun, std::vector<BodyPeer>{{plan.place, link_}}, fetchGradients);
  engine_ = engine.get();
  worker_ = std::make_shared<EngineWorker>(
      std::move(engine), mailbox, std::move(table), [] {},
      [this](std::exception_ptr error) {
        failed_ = true;
        link_->fail(std::move(error));
      },
      compute_.queue(), trace_);
  device_.attach(worker_);
  asio::co_spawn(io_.context(), serve(std::move(connection_)), [this](std::exception_ptr error) {
    link_->recordUnacknowledged();
    end(std::move(error));
  });
}

// Serves the run's connections, one after the other, until the run ends. Throws the error that
// ended the run.
asio::awaitable<void> ClientSession::serve(std::shared_ptr<Connection> connection) {
  Arrived atServer;
  for (;;) {
    link_->attach(std::move(connection), atServer);
    std::optional<RunError> broken;
    try {
      const std::string reason = co_await link_->serve();
      if (reason != "done") throw endedByServer(reason);
      co_return;
    } catch (const Error& error) {
      if (!mayReconnect(error)) throw;
      broken.emplace(error.code(), error.what(), error.hint());
    }
    link_->detach();
    OpenConnection open = co_await reconnect(*broken);
    if (isClosing_) co_return open.connection->abandon();
    files_->reconnected(open.ok.session(), hello_.generation());
    connection = std::move(open.connection);
    atServer = arrivedFromWire(open.ok.arrived());
  }
}

bool ClientSession::mayReconnect(const Error& error) const {
  return reconnectSeconds_ > 0 && !isClosing_ && isLinkFault(error.code());
}

asio::awaitable<OpenConnection> ClientSession::reconnect(const Error& broken) {
  processLog()->warn("{}; reconnecting for up to {:.0f} s", broken.what(), reconnectSeconds_);
  const SteadyTime start = now();
  OpenConnection open = co_await reconnectToServer(
      address_, [this] { return nextHello(); }, reconnectSeconds_);
  processLog()->info("reconnected after {:.1f} s; the run continues", secondsSince(start));
  co_return open;
}

// Runs on the io thread, except for tensors, which are received in the codec queue.
void ClientSession::received(Message message, Mailbox& mailbox,
                             const std::function<void(const Saved&)>& saved) {
  if (const auto* each = std::get_if<Saved>(&message); each && saved) {
    saved(*each);
  } else if (std::holds_alternative<Drain>(message)) {
    if (!isServerDraining_.exchange(true)) processLog()->info("the server is shutting down");
    device_.notify();
  } else {
    mailbox.deliver(std::move(message));
  }
}

// The generation rises with each attempt, so that the server can identify the newest connection.
wire::Hello ClientSession::nextHello() {
  hello_.set_generation(nextGeneration_());
  toWire(link_->arrived(), *hello_.mutable_arrived());
  return hello_;
}

void ClientSession::end(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = error;
    ended_ = true;
  }
  device_.notify();
}

asio::awaitable<void> ClientSession::waitForSignals() {
  co_await signals_.async_wait(asio::use_awaitable);
  interrupted_ = true;
  device_.notify();
  lastWork_.expires_after(kLastWork);
  lastWork_.async_wait([this](const boost::system::error_code& cancelled) {
    if (cancelled) return;
    timeIsUp_ = true;
    device_.notify();
  });
  processLog()->info("stopping; interrupt again to exit immediately");
  co_await signals_.async_wait(asio::use_awaitable);
  ::_exit(1);
}

void ClientSession::waitUntil(const std::function<bool()>& done, Patience patience) {
  const std::atomic<bool>& isOver =
      patience == Patience::untilInterrupted ? interrupted_ : timeIsUp_;
  device_.runUntil([&] {
    handOverWeights();
    // If a step is decided, waits until the client has applied it too, so that head and tail are
    // from the same step as the body.
    const bool mayLeave = failed_ || !engine_->updatePending();
    return done() || (ended_ && mayLeave) || isOver;
  });
  if (done()) return;
  if (ended_) {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
    throw RunError("server-left", "the server ended the run early",
                   "check the server's log, then rerun the command");
  }
  throw interruptedError();
}

void ClientSession::sendWeights(SharedBytes weights) {
  engine_->sendWeights(std::move(weights));
  waitForStoredWeights();
}

void ClientSession::waitForStoredWeights() {
  waitUntil([this] { return engine_->weightsInPlace(); });
}

void ClientSession::resume(const EngineState& state, std::vector<TensorCodecs::SavedState> codecs) {
  link_->restoreCodecs(std::move(codecs));
  engine_->resume(state);
  waitUntil([this] { return engine_->weightsInPlace(); });
}

void ClientSession::runBatch(const MicroBatch& at, bool isLast) {
  if (interrupted_ && !isLast) throw interruptedError();
  if (isServerDraining_ && !makesCheckpoints_) throw endedByServer("shutting-down");
  engine_->begin(at);
  // The link is idle now, so the reply measures its latency.
  asio::post(io_.context(), [link = link_] {
    if (const auto connection = link->connection()) connection->ping();
  });
  device_.notify();
  // Completes the current step on both sides, so that the saved parts are from the same step.
  waitUntil([this] { return engine_->batchDone(); }, Patience::untilTimeIsUp);
}

void ClientSession::fetchWeights(std::function<void(Blob body)> arrived) {
  if (timeIsUp_ || !engine_->batchDone()) throw interruptedError();
  weightsArrived_ = std::move(arrived);
  // The request is queued after the last Step and before the next batch, so the server replies
  // after it has applied that step.
  engine_->fetch(kWeightsBody);
}

void ClientSession::handOverWeights() {
  if (!weightsArrived_ || !engine_->blob()) return;
  std::exchange(weightsArrived_, nullptr)(*engine_->blob());
}

void ClientSession::waitForWeights() {
  waitUntil([this] { return !weightsArrived_; }, Patience::untilTimeIsUp);
}

Blob ClientSession::fetch(Flow flow) {
  const auto waitFor = [this](const std::function<bool()>& done) {
    waitUntil(done, Patience::untilTimeIsUp);
  };
  waitFor([this] { return !weightsArrived_; });
  waitFor([this] { return engine_->appliedByPeers() == engine_->applied(); });
  engine_->fetch(flow);
  waitFor([this] { return engine_->blob().has_value(); });
  return *engine_->blob();
}

void ClientSession::close(const std::string& reason) {
  if (!worker_) return;
  worker_->stop();  // because the memory that it borrows from a batch may already be freed
  if (ended_) return;
  asio::post(io_.context(), [this, reason] {
    isClosing_ = true;
    if (const auto connection = link_->connection()) return connection->sayBye(reason);
    end(nullptr);
  });
  device_.runUntil([this] { return ended_.load(); });
}

LinkSpeed ClientSession::linkSpeed() const {
  const auto& done = engine_->bodyDone();
  // Each side's estimate may be too high, because buffers absorb some of the bytes.
  const auto lesser = [](double here, double there) {
    return here == 0 || there == 0 ? std::max(here, there) : std::min(here, there);
  };
  return {lesser(link_->sendRate(), done ? done->receiveRate : 0),
          lesser(link_->receiveRate(), done ? done->sendRate : 0), link_->clock().roundTripSeconds};
}

Samples ClientSession::samples(const Recorder& recorder, const TlsContext* tls) {
  Samples samples = sharedSamples(recorder, *pool_, tls, compute_.memoryBytes());
  const auto outbox = askOn(io_.context().get_executor(), [link = link_]() -> std::size_t {
    const auto connection = link->connection();
    return connection ? connection->outbox().size() : 0;
  });
  if (outbox) samples.push_back({"outbox_entries", static_cast<double>(*outbox), ""});
  samples.push_back({"mailbox_entries", static_cast<double>(worker_->waiting()), ""});
  return samples;
}

LinkTotals ClientSession::totals() const { return link_ ? link_->totals() : LinkTotals{}; }

}  // namespace cleave
