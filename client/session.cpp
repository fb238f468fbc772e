#include "client/session.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "common/core/clock.h"
#include "common/core/log.h"
#include "common/net/notices.h"
#include "common/pipeline/wire_messages.h"

namespace cleave {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr double kFirstPause = 0.25;  // seconds; doubled each time
constexpr double kLongestPause = 4;
constexpr std::chrono::seconds kConnectDeadline{5};
// Refusals that the client's configuration is at fault for; all others may pass as they came.
constexpr std::string_view kWrongUse[] = {"bad-run-spec",
                                          "unknown-model",
                                          "model-not-allowed",
                                          "bad-model-parameter",
                                          "bad-sample-shape",
                                          "bad-classes",
                                          "bad-cuts",
                                          "unknown-codec",
                                          "bad-codec-spec",
                                          "unknown-schedule",
                                          "bad-in-flight",
                                          "unknown-optimizer",
                                          "bad-optimizer-parameter",
                                          "bad-wait",
                                          "bad-run-id"};

asio::steady_timer::duration duration(double seconds) {
  return std::chrono::duration_cast<asio::steady_timer::duration>(
      std::chrono::duration<double>(seconds));
}

RunError interruptedError() {
  return RunError("interrupted", "interrupted",
                  "run it again; what was recorded so far is complete");
}

std::span<const std::byte> bytesOf(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

[[noreturn]] void throwRefused(const std::string& peer, const RunError& refused) {
  const std::string sentence = "the server at " + peer + " refuses: " + refused.what();
  if (std::find(std::begin(kWrongUse), std::end(kWrongUse), refused.code()) !=
      std::end(kWrongUse)) {
    throw UsageError(refused.code(), sentence, refused.fix());
  }
  throw RunError(refused.code(), sentence, refused.fix());
}

// Throws where `frame` is no HelloOk that was asked for.
wire::HelloOk helloOkFrom(const Connection::HandshakeFrame& frame, const std::string& peer) {
  const auto metadata = bytesOf(frame.metadata);
  if (frame.kind != FrameKind::helloOk) throwRefused(peer, errorFromFailure(metadata));
  auto ok = parseMetadata<wire::HelloOk>(frame.kind, metadata);
  if (ok.version() != kWireVersion) {
    throw ProtocolError("version-mismatch",
                        "the server chose version " + std::to_string(ok.version()) +
                            " of the wire, which was not offered",
                        "install the same release of Cleave on both machines");
  }
  return ok;
}

}  // namespace

ServerAddress parseAddress(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  ServerAddress address;
  if (colon != std::string::npos) {
    address.host = text.substr(0, colon);
    address.port = text.substr(colon + 1);
  }
  if (address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']') {
    address.host = address.host.substr(1, address.host.size() - 2);
  }
  const bool isNumber = !address.port.empty() && address.port.size() <= 5 &&
                        std::all_of(address.port.begin(), address.port.end(),
                                    [](char c) { return c >= '0' && c <= '9'; });
  const int port = isNumber ? std::stoi(address.port) : 0;
  if (address.host.empty() || port < 1 || port > 65535) {
    throw UsageError(
        "bad-address", "--server '" + text + "' is not HOST:PORT",
        "give a name or an address and a port in 1…65535, such as 10.0.0.5:4800 or [::1]:4800");
  }
  return address;
}

ClientSession::ClientSession(ComputeDevice& compute)
    : compute_(compute),
      pool_(std::make_shared<BufferPool>(BufferPool::kMaxRetained, compute.hostMemory())),
      signals_(io_.context(), SIGINT, SIGTERM) {
  asio::co_spawn(io_.context(), waitForSignals(), [](std::exception_ptr error) {
    if (error) std::rethrow_exception(error);
  });
}

ClientSession::~ClientSession() {
  if (worker_) worker_->stop();
  io_.stop();
  codecThreads_.join();
  // Before the threads and the io context that they belong to.
  if (worker_) device_.detach(worker_);
  worker_.reset();
  link_.reset();
  connection_.reset();
}

// ---- Connecting ----

wire::HelloOk ClientSession::connect(const ServerAddress& address, const wire::Hello& hello,
                                     double retrySeconds) {
  std::optional<wire::HelloOk> answer;
  std::exception_ptr error;
  std::atomic<bool> done = false;
  asio::co_spawn(io_.context(), connectWithRetry(address, hello, retrySeconds),
                 [&](std::exception_ptr failed, wire::HelloOk ok) {
                   error = std::move(failed);
                   answer = std::move(ok);
                   done = true;
                   device_.notify();
                 });
  device_.runUntil([&] { return done || interrupted_; });
  if (!done) {
    io_.stop();  // what still waits goes no further: neither does anything of this session
    throw interruptedError();
  }
  if (error) std::rethrow_exception(error);
  return *std::move(answer);
}

asio::awaitable<wire::HelloOk> ClientSession::connectWithRetry(ServerAddress address,
                                                               wire::Hello hello,
                                                               double retrySeconds) {
  const SteadyTime start = now();
  double pause = kFirstPause;
  for (;;) {
    std::string reason;
    try {
      auto socket = co_await connectOnce(address);
      connection_ = std::make_shared<Connection>(std::move(socket), ConnectionOptions{});
    } catch (const boost::system::system_error& error) {
      if (error.code() == asio::error::host_not_found) {
        throw UsageError("no-such-host",
                         "--server " + address.text() + ": there is no host '" + address.host +
                             "': " + error.code().message(),
                         "check the name, or give the server's IP address");
      }
      reason = error.code().message();
    }
    if (connection_) co_return co_await shakeHands(std::move(hello));
    const double left = retrySeconds - secondsSince(start);
    if (left <= 0) {
      throw RunError("no-server", "cannot connect to " + address.text() + ": " + reason,
                     "start it there: cleave-server serve --config configs/server.yaml; or check "
                     "host, port and firewall");
    }
    pause = std::min(pause, left);
    processLog()->warn("cannot connect to {}: {}; trying again in {:.2f} s, for {:.0f} s more",
                       address.text(), reason, pause, left);
    asio::steady_timer timer(io_.context(), duration(pause));
    co_await timer.async_wait(asio::use_awaitable);
    pause = std::min(2 * pause, kLongestPause);
  }
}

asio::awaitable<tcp::socket> ClientSession::connectOnce(ServerAddress address) {
  using namespace asio::experimental::awaitable_operators;
  tcp::resolver resolver(io_.context());
  const auto endpoints =
      co_await resolver.async_resolve(address.host, address.port, asio::use_awaitable);
  tcp::socket socket(io_.context());
  asio::steady_timer deadline(io_.context(), kConnectDeadline);
  // As a tuple, since || waits for a success: a refusal would otherwise wait for the deadline.
  const auto first =
      co_await (asio::async_connect(socket, endpoints, asio::as_tuple(asio::use_awaitable)) ||
                deadline.async_wait(asio::use_awaitable));
  if (first.index() == 1) throw boost::system::system_error(asio::error::timed_out);
  const boost::system::error_code error = std::get<0>(std::get<0>(first));
  if (error) throw boost::system::system_error(error);
  co_return socket;
}

asio::awaitable<wire::HelloOk> ClientSession::shakeHands(wire::Hello hello) {
  try {
    co_await connection_->writeHandshakeFrame(FrameKind::hello, hello.SerializeAsString());
    const auto frame = co_await connection_->readHandshakeFrame(ConnectionState::awaitingHelloOk);
    co_return helloOkFrom(frame, connection_->peer());
  } catch (const RunError& error) {
    // Perhaps it is no Cleave server that answers: the address is what a user can check.
    const std::string sentence = error.what();
    if (sentence.find(connection_->peer()) != std::string::npos) throw;
    throw RunError(error.code(), connection_->peer() + ": " + sentence, error.fix());
  }
}

// ---- The run ----

void ClientSession::start(const RunPlan& plan, std::uint32_t errorEvery, ActionTable table,
                          bool fetchGradients, std::shared_ptr<RunFiles> files) {
  TensorLinkOptions options = linkOptions(plan, Role::client);
  options.errorEvery = errorEvery;
  options.helper = helper_.get();
  const auto mailbox = std::make_shared<Mailbox>(device_, plan.inFlight);
  link_ = std::make_shared<TensorLink>(
      std::move(options), connection_, pool_, io_.context().get_executor(),
      codecThreads_.get_executor(),
      [mailbox](Message message) { mailbox->deliver(std::move(message)); },
      [files](const TransferRecord& record) { files->transfer(record); });
  worker_ = std::make_shared<EngineWorker>(
      EngineOptions{Role::client, plan.schedule, plan.microBatches, plan.inFlight, fetchGradients,
                    plan.initialWeights},
      link_, mailbox, std::move(table), [] {},
      [this](std::exception_ptr error) {
        asio::post(io_.context(), [this, error] { connection_->fail(error); });
      },
      compute_.queue());
  device_.attach(worker_);
  asio::co_spawn(io_.context(), connection_->run(*link_),
                 [this](std::exception_ptr error, std::string reason) {
                   if (!error && reason != "done") {
                     error = std::make_exception_ptr(
                         RunError("server-left", "the server ended the run (" + reason + ")",
                                  "start it again and run again"));
                   }
                   link_->recordUnacknowledged();
                   end(error);
                 });
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
  processLog()->info("interrupted; once more to end at once");
  co_await signals_.async_wait(asio::use_awaitable);
  ::_exit(1);
}

void ClientSession::waitUntil(const std::function<bool()>& done) {
  device_.runUntil([&] { return done() || ended_ || interrupted_; });
  if (done()) return;
  if (ended_) {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
    throw RunError("server-left", "the server ended the run before its end",
                   "look at its log, and run again");
  }
  throw interruptedError();
}

void ClientSession::sendWeights(SharedBytes weights) {
  worker_->engine().sendWeights(std::move(weights));
  waitUntil([this] { return worker_->engine().weightsInPlace(); });
}

void ClientSession::runBatch(const MicroBatch& at) {
  worker_->engine().begin(at);
  // Nothing else is on the link now, so that the answer says how long it is.
  asio::post(io_.context(), [connection = connection_] { connection->ping(); });
  device_.notify();
  waitUntil([this] { return worker_->engine().batchDone(); });
}

Blob ClientSession::fetchWeights() {
  Engine& engine = worker_->engine();
  waitUntil([&] { return engine.appliedByPeer() == engine.applied(); });
  engine.fetchWeights();
  waitUntil([&] { return engine.blob().has_value(); });
  return *engine.blob();
}

void ClientSession::close(const std::string& reason) {
  if (!worker_) return;
  worker_->stop();  // what a batch borrowed may be gone by now
  if (ended_) return;
  asio::post(io_.context(), [this, reason] { connection_->sayBye(reason); });
  device_.runUntil([this] { return ended_.load(); });
}

LinkSpeed ClientSession::linkSpeed() const {
  const auto& done = worker_->engine().bodyDone();
  return {connection_->sendRate(), done ? done->sendRate : 0, connection_->roundTripSeconds()};
}

LinkTotals ClientSession::totals() const { return link_ ? link_->totals() : LinkTotals{}; }

}  // namespace cleave
