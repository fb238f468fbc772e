#include "server/sessions/server.h"

#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <csignal>
#include <exception>
#include <future>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/core/endpoint.h"
#include "common/core/log.h"
#include "common/core/terminal.h"
#include "common/files/environment.h"
#include "common/net/connection_messages.h"
#include "common/net/frames/frame.h"
#include "common/net/streams/accept.h"
#include "common/net/streams/listen.h"
#include "common/replicas/replica_listener.h"
#include "server/config/resources.h"
#include "server/sessions/server_samples.h"

namespace cleave {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

// Pause after a failed accept, which usually means that no descriptors are left; ending sessions
// release some.
constexpr std::chrono::seconds kBetweenLooks{1};
constexpr std::chrono::milliseconds kHangup{100};
// Time between the Failures that end sessions and the end of the process; a Failure may take a
// second to reach its client.
constexpr std::chrono::milliseconds kUntilLeave{1500};

// Whether the program was started with SIGHUP ignored, as by nohup. Call before a signal_set
// handles SIGHUP.
bool ignoresHangup() {
  struct sigaction current {};
  return ::sigaction(SIGHUP, nullptr, &current) == 0 && current.sa_handler == SIG_IGN;
}

// Returns the exit code. Waits for a limited time, so that a disk that hangs cannot block the exit.
// Rows that could not be written are a failure of their run, which reports it, and not of the
// server.
int finishRecords(RunStore& store) {
  constexpr std::chrono::seconds kMax{1};
  const auto done = std::make_shared<std::promise<void>>();
  store.whenWritten([done] { done->set_value(); });
  if (done->get_future().wait_for(kMax) == std::future_status::ready) return 0;
  processLog()->error("the last records were not written to the disk within {} s", kMax.count());
  return 1;
}

tcp::acceptor listening(asio::io_context& io, const ServerSettings& settings) {
  tcp::acceptor acceptor(io);
  const tcp::endpoint endpoint(asio::ip::make_address(settings.address), settings.port);
  listenOn(acceptor, endpoint, {"listen.address", "--set listen.port="});
  return acceptor;
}

std::optional<ReplicaGroup> replicaGroup(const ServerSettings& settings) {
  if (!settings.replicas) return std::nullopt;
  const ReplicaSettings& replicas = *settings.replicas;
  const std::string& own = replicas.hosts[replicas.rank];
  ReplicaGroup group{replicas.hosts, static_cast<int>(replicas.rank), replicas.timeout,
                     std::make_shared<ReplicaListener>(own)};
  processLog()->info("replica {} of {}: exchanges gradients at {}, unencrypted", replicas.rank,
                     replicas.count(), own);
  return group;
}

// Exceptions from these coroutines are bugs: they must end the process instead of being lost.
void rethrow(std::exception_ptr error) {
  if (error) std::rethrow_exception(error);
}

}  // namespace

Server::Server(const ServerSettings& settings, ComputeDevice& device,
               std::shared_ptr<Metrics> metrics, StageProcesses* stages)
    : settings_(settings),
      compute_(device),
      access_(settings.accessFile, settings.allowedModels),
      certificates_(settings.tls, settings.edges.allow.empty()
                                      ? std::nullopt
                                      : std::optional(settings.edges.folder)),
      admission_(settings, access_),
      connections_(settings.connections),
      pool_(std::make_shared<BufferPool>(pooledBytes(settings), device.hostMemory())),
      codecs_(settings.threads > 0 ? settings.threads : usableCores(), settings.codecSeconds),
      store_(settings, access_, device, std::move(metrics), io_.context().get_executor()),
      replicas_(replicaGroup(settings)),
      resources_{.settings = settings,
                 .compute = device,
                 .device = device_,
                 .io = io_.context().get_executor(),
                 .pool = pool_,
                 .codecs = codecs_,
                 .helper = helper_.get(),
                 .store = store_,
                 .lines = lines_,
                 .certificates = certificates_,
                 .replicas = replicas_ ? &*replicas_ : nullptr,
                 .stages = stages},
      runs_(resources_, admission_, [this] { runClosed(); }),
      context_{.settings = settings,
               .io = io_.context().get_executor(),
               .certificates = certificates_,
               .access = access_,
               .admission = admission_,
               .runs = runs_,
               .refusals = refusals_,
               .lines = lines_},
      acceptor_(listening(io_.context(), settings)),
      signals_(io_.context(), SIGINT, SIGTERM),
      endsWithTerminal_(hasControllingTerminal() && !ignoresHangup()),
      reloadSignals_(io_.context(), SIGHUP),
      port_(acceptor_.local_endpoint().port()),
      operator_(context_, sessions_, Endpoint{settings.address, port_}.text()),
      statusSocket_(StatusSocket::open(
          io_.context().get_executor(), settings.statusSocket,
          [this](const std::string& request) { return operator_.answer(request); })) {
  if (!settings.dial) return;
  dialer_ =
      std::make_unique<Dialer>(io_.context().get_executor(), *settings.dial, settings.tls.enabled,
                               [this](tcp::socket socket, const asio::ip::address& client) {
                                 start(std::move(socket), client);
                               });
}

Server::~Server() { io_.stop(); }

void Server::run() {
  asio::co_spawn(io_.context(),
                 acceptAll<tcp>(
                     acceptor_, [this](tcp::socket socket) { admit(std::move(socket)); },
                     [this](const boost::system::error_code& error) {
                       refusals_.note("a connection", RunError("cannot-accept", error.message()));
                     }),
                 rethrow);
  asio::co_spawn(io_.context(), waitForSignals(), rethrow);
  asio::co_spawn(io_.context(), waitForReloads(), rethrow);
  asio::co_spawn(io_.context(), certificates_.watch(io_.context().get_executor()), rethrow);
  asio::co_spawn(io_.context(), lookEverySecond(), rethrow);
  if (statusSocket_) asio::co_spawn(io_.context(), statusSocket_->serve(), rethrow);
  if (dialer_) asio::co_spawn(io_.context(), dialer_->run(), rethrow);
  device_.runUntil([this] { return stopped_.load(); });
  codecs_.stop();
  std::promise<void> written;
  store_.whenWritten([&] { written.set_value(); });
  written.get_future().wait();
  logRefusals();
}

Samples Server::samples() {
  auto samples = askOn(io_.context().get_executor(),
                       [this] { return serverSamples(resources_, context_, sessions_); });
  return samples ? *std::move(samples) : Samples{};
}

void Server::logRefusals() const {
  const std::string refused = refusals_.summary();
  if (!refused.empty())
    processLog()->info("refused or ended because of a client error: {}", refused);
}

// ---- Connections ----

void Server::admit(tcp::socket socket) {
  boost::system::error_code gone;  // the peer has already disconnected
  const tcp::endpoint peer = socket.remote_endpoint(gone);
  if (!gone) start(std::move(socket), peer.address());
}

// `client`: for the limits per address. It differs from the peer's address behind a relay.
void Server::start(tcp::socket socket, const asio::ip::address& client) {
  if (sessions_.isDraining()) return;  // the accept completed during shutdown
  std::shared_ptr<ConnectionLimits::Ticket> ticket;
  try {
    ticket = connections_.admit(client, now());
  } catch (const RunError& refused) {
    return refuse(std::move(socket), refused);
  }
  const auto session = sessions_.open(context_, std::move(socket));
  asio::co_spawn(io_.context(), session->serve(),
                 [this, session, ticket](std::exception_ptr failed) {
                   rethrow(failed);
                   sessionEnded(session);
                 });
}

// Sends only what the kernel accepts immediately, without waiting. With TLS the connection is
// closed without a reply: a handshake is the costliest thing an unauthenticated peer can trigger.
void Server::refuse(tcp::socket socket, const Error& error) {
  boost::system::error_code ignored;
  std::ostringstream who;
  who << "connection from " << socket.remote_endpoint(ignored);
  refusals_.note(who.str(), error);
  if (certificates_.tls()) return;
  std::vector<std::byte> frame;
  encodeHead(FrameKind::refused, 0, failureMetadata(error), {}, true, frame);
  socket.non_blocking(true, ignored);
  socket.write_some(asio::buffer(frame), ignored);
  socket.shutdown(tcp::socket::shutdown_send, ignored);
}

void Server::sessionEnded(const std::shared_ptr<Session>& session) {
  sessions_.remove(session);
  if (session->wasAdmitted()) releaseUnused();
  stopIfDone();
}

void Server::runClosed() {
  releaseUnused();
  stopIfDone();
}

void Server::releaseUnused() {
  // Posted to another thread, so that the io thread does not wait.
  housekeeping_->post([pool = pool_, idle = runs_.empty()] {
    if (idle) pool->clear();
    releaseMemory();
  });
  if (runs_.empty()) device_.post([&compute = compute_] { compute.releaseMemory(); });
}

void Server::stopIfDone() {
  if (sessions_.isDraining() && sessions_.empty() && runs_.empty()) stop();
}

asio::awaitable<void> Server::lookEverySecond() {
  asio::steady_timer timer(io_.context());
  while (true) {
    timer.expires_after(kBetweenLooks);
    co_await timer.async_wait(asio::use_awaitable);
    const SteadyTime time = now();
    refusals_.flush(time);
    lines_.flush(time);
    runs_.recordUsage(time);
    store_.look(time);
    sessions_.forEach([&](Session& session) { session.endIfIdle(time); });
  }
}

// ---- Reloading ----

asio::awaitable<void> Server::waitForReloads() {
  while (true) {
    co_await reloadSignals_.async_wait(asio::use_awaitable);
    const bool isGone = co_await terminalIsGone();
    if (isGone) {
      hangUp();
    } else {
      reload();
    }
  }
}

void Server::reload() {
  access_.reload();
  certificates_.reload();
  sessions_.forEach([](Session& session) { session.endIfNoLongerAllowed(); });
  // The certificate of a run without a connection is checked when its client connects again.
  runs_.endParked(UsageError("unknown-identity", "its identity was removed from the access file"),
                  [this](const Seat& seat) { return !access_.has(seat.request().identity); });
}

// After a SIGHUP, waits a moment: the kernel may send the signal just before it removes the
// terminal.
asio::awaitable<bool> Server::terminalIsGone() {
  if (!endsWithTerminal_) co_return false;
  asio::steady_timer moment(io_.context(), kHangup);
  co_await moment.async_wait(asio::use_awaitable);
  co_return !hasControllingTerminal();
}

void Server::hangUp() {
  if (sessions_.isDraining()) return;
  processLog()->info("shutting down: the terminal was closed");
  shutDown();
}

// ---- Shutting down ----

asio::awaitable<void> Server::waitForSignals() {
  co_await signals_.async_wait(asio::use_awaitable);
  processLog()->info("shutting down; a second signal exits immediately");
  shutDown();
  co_await signals_.async_wait(asio::use_awaitable);
  ::_exit(1);
}

void Server::shutDown() {
  acceptor_.close();
  if (dialer_) dialer_->stop();
  sessions_.drain();
  runs_.endParked(RunError(ErrorKind::attempt, "shutting-down", "the server is shutting down"),
                  [](const Seat&) { return true; });
  stopIfDone();
  asio::co_spawn(io_.context(), endLater(), rethrow);
}

void Server::stop() {
  stopped_ = true;
  device_.notify();
}

// Aborts steps that are not done in time. An action or codec that is still running cannot be
// interrupted: it ends with the process.
asio::awaitable<void> Server::endLater() {
  asio::steady_timer timer(io_.context(), settings_.drain);
  co_await timer.async_wait(asio::use_awaitable);
  sessions_.forEach([](Session& session) { session.shutDown(); });
  timer.expires_after(kUntilLeave);
  co_await timer.async_wait(asio::use_awaitable);
  leave();
}

// Exits without waiting for the device thread, which is in the middle of an action, and without
// destructors, which would wait for it. All records have been completed.
void Server::leave() {
  runs_.completeRecords();
  logRefusals();
  const int code = finishRecords(store_);
  processLog()->warn("ended without waiting for an action or a codec that took too long");
  flushLog();
  ::_exit(code);
}

}  // namespace cleave
