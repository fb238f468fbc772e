#include "server/server.h"

#include <unistd.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "common/core/environment.h"
#include "common/core/log.h"
#include "common/core/process.h"
#include "common/core/terminal.h"
#include "common/net/frame.h"
#include "common/net/listen.h"
#include "common/net/notices.h"
#include "server/ask_server.h"
#include "server/resources.h"
#include "server/status.h"

namespace cleave {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

// Accepting fails if there are no descriptors left; sessions that end release theirs.
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::chrono::seconds kBetweenLooks{1};
constexpr std::chrono::milliseconds kHangup{100};
// From the Failure that ends a session, which may take a second to reach its client, to the end of
// the process.
constexpr std::chrono::milliseconds kUntilLeave{1500};

// Whether the program was started with SIGHUP ignored, as by nohup. Call before a signal_set
// handles SIGHUP.
bool ignoresHangup() {
  struct sigaction current {};
  return ::sigaction(SIGHUP, nullptr, &current) == 0 && current.sa_handler == SIG_IGN;
}

// Returns the exit code. Waits for a limited time, so that a disk that hangs cannot block the exit.
int flushRecords(Recorder& recorder) {
  constexpr std::chrono::seconds kMost{1};
  const auto done = std::make_shared<std::promise<int>>();
  auto code = done->get_future();
  std::thread([&recorder, done] {
    try {
      recorder.flush();
      done->set_value(0);
    } catch (const Error& error) {
      processLog()->error("{}", error.what());
      done->set_value(error.exitCode());
    }
  }).detach();
  if (code.wait_for(kMost) == std::future_status::ready) return code.get();
  processLog()->error("the last records were not written to the disk within {} s", kMost.count());
  return 1;
}

// Otherwise every client would get the error, and the operator none.
void checkStore(const std::string& store) {
  std::error_code error;
  std::filesystem::create_directories(store, error);
  if (!error && ::access(store.c_str(), W_OK) != 0) {
    error = {errno, std::generic_category()};
  }
  if (!error) return;
  throw UsageError("not-writable", "the store " + store + " cannot be written: " + error.message(),
                   "use a writable folder: --set store=DIR");
}

}  // namespace

Server::Server(const ServerSettings& settings, ComputeDevice& device,
               std::shared_ptr<Metrics> metrics)
    : settings_(settings),
      access_(settings.accessFile, settings.allowedModels),
      admission_(settings, access_),
      disk_(settings.store, settings.diskReserveBytes),
      connections_(settings.connections),
      codecs_(settings.threads > 0 ? settings.threads : usableCores(), settings.codecSeconds),
      context_{settings,
               device,
               device_,
               recorder_,
               std::make_shared<BufferPool>(pooledBytes(settings), device.hostMemory()),
               io_.context().get_executor(),
               codecs_,
               helper_.get(),
               access_,
               admission_,
               refusals_,
               disk_,
               lines_,
               std::move(metrics),
               openTls(settings.tls, TlsRole::server)},
      acceptor_(io_.context()),
      signals_(io_.context(), SIGINT, SIGTERM),
      endsWithTerminal_(hasControllingTerminal() && !ignoresHangup()),
      reloadSignals_(io_.context(), SIGHUP) {
  checkStore(settings.store);
  const tcp::endpoint endpoint(asio::ip::make_address(settings.address), settings.port);
  listenOn(acceptor_, endpoint, {"listen.address", "--set listen.port="});
  port_ = acceptor_.local_endpoint().port();
  statusSocket_ =
      StatusSocket::open(io_.context().get_executor(), settings.statusSocket,
                         [this](const std::string& request) { return answer(request); });
}

Server::~Server() { io_.stop(); }

void Server::run() {
  // Exceptions from these coroutines are bugs: they must end the process instead of being lost.
  const auto rethrow = [](std::exception_ptr error) {
    if (error) std::rethrow_exception(error);
  };
  asio::co_spawn(io_.context(), accept(), rethrow);
  asio::co_spawn(io_.context(), waitForSignals(), rethrow);
  asio::co_spawn(io_.context(), waitForReloads(), rethrow);
  asio::co_spawn(io_.context(), watchCertificates(), rethrow);
  asio::co_spawn(io_.context(), lookEverySecond(), rethrow);
  if (statusSocket_) asio::co_spawn(io_.context(), statusSocket_->serve(), rethrow);
  device_.runUntil([this] { return stopped_.load(); });
  codecs_.stop();
  recorder_.flush();
  logRefusals();
}

void Server::logRefusals() const {
  const std::string refused = refusals_.summary();
  if (!refused.empty())
    processLog()->info("refused or ended because of a client error: {}", refused);
}

asio::awaitable<void> Server::accept() {
  while (acceptor_.is_open()) {
    auto [error, socket] = co_await acceptor_.async_accept(asio::as_tuple(asio::use_awaitable));
    if (!error) {
      start(std::move(socket));
    } else if (acceptor_.is_open()) {
      refusals_.note("a connection", RunError("cannot-accept", error.message()));
      asio::steady_timer pause(io_.context(), kAcceptPause);
      co_await pause.async_wait(asio::use_awaitable);
    }
  }
}

void Server::start(tcp::socket socket) {
  if (shuttingDown_) return;  // an accept completed during shutdown
  boost::system::error_code error;
  const tcp::endpoint peer = socket.remote_endpoint(error);
  if (error) return;  // the peer has already disconnected
  std::shared_ptr<ConnectionLimits::Ticket> ticket;
  try {
    ticket = connections_.admit(peer.address(), now());
  } catch (const RunError& refused) {
    return refuse(std::move(socket), refused);
  }
  auto session = std::make_shared<Session>(context_, std::move(socket), nextSession_++);
  sessions_.insert(session);
  asio::co_spawn(io_.context(), session->serve(),
                 [this, session, ticket](std::exception_ptr failed) {
                   if (failed) std::rethrow_exception(failed);
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
  if (context_.tls) return;
  std::vector<std::byte> frame;
  encodeHead(FrameKind::refused, 0, failureMetadata(error), {}, true, frame);
  socket.non_blocking(true, ignored);
  socket.write_some(asio::buffer(frame), ignored);
  socket.shutdown(tcp::socket::shutdown_send, ignored);
}

void Server::sessionEnded(const std::shared_ptr<Session>& session) {
  sessions_.erase(session);
  if (session->wasAdmitted()) {
    ++endedSessions_[session->kind()];
    // Posted, so that the io thread does not wait for it.
    housekeeping_->post([pool = context_.pool, idle = sessions_.empty()] {
      if (idle) pool->clear();
      releaseMemory();
    });
    if (sessions_.empty()) device_.post([&compute = context_.compute] { compute.releaseMemory(); });
  }
  if (shuttingDown_ && sessions_.empty()) {
    stopped_ = true;
    device_.notify();
  }
}

std::string Server::status() const {
  ServerStatus status;
  status.address = settings_.address + ":" + std::to_string(port_);
  status.device = settings_.device;
  status.hasTls = context_.tls != nullptr;
  status.isShuttingDown = shuttingDown_;
  status.seconds = secondsSince(start_);
  status.connections = sessions_.size();
  status.mostSessions = settings_.maxSessions;
  status.admittedBytes = admission_.admittedBytes();
  status.mostBytes = settings_.memoryBytes;
  status.residentBytes = residentBytes();
  status.refusals = refusals_.counts();
  for (const auto& session : sessions_) {
    if (auto known = session->status()) status.sessions.push_back(std::move(*known));
  }
  return statusJson(std::move(status));
}

// Answers a request of the operator at the status socket.
std::string Server::answer(const std::string& request) const {
  if (!request.starts_with(kEndRequest)) return status();
  const char* digits = request.c_str() + std::string_view(kEndRequest).size();
  const bool ended = endSession(std::strtoull(digits, nullptr, 10));
  return nlohmann::json({{"ended", ended}}).dump() + "\n";
}

// Returns whether there was such a session to end.
bool Server::endSession(std::uint64_t number) const {
  for (const auto& session : sessions_) {
    if (session->number() != number || !session->status()) continue;
    processLog()->info("the operator ends session {}", number);
    session->end(RunError("ended-by-operator", "the server's operator has ended this session",
                          "ask the operator before you run again"));
    return true;
  }
  return false;
}

Samples Server::samples() {
  auto samples = askOn(io_.context().get_executor(), [this] { return samplesOnIo(); });
  return samples ? *std::move(samples) : Samples{};
}

Samples Server::samplesOnIo() const {
  double outbox = 0, mailbox = 0;
  std::map<std::string, std::uint64_t> open = {{"run", 0}, {"trial", 0}, {"probe", 0}};
  for (const auto& session : sessions_) {
    outbox += static_cast<double>(session->outboxEntries());
    mailbox += static_cast<double>(session->mailboxEntries());
    if (session->wasAdmitted()) ++open[session->kind()];
  }
  Samples samples =
      sharedSamples(recorder_, *context_.pool, context_.tls.get(), context_.compute.memoryBytes());
  samples.push_back({"outbox_entries", outbox, ""});
  samples.push_back({"mailbox_entries", mailbox, ""});
  for (const auto& [kind, count] : open) {
    samples.push_back({"sessions", static_cast<double>(count), kind});
  }
  for (const auto& [kind, count] : open) {
    const auto ended = endedSessions_.find(kind);
    const std::uint64_t before = ended == endedSessions_.end() ? 0 : ended->second;
    samples.push_back({"sessions_total", static_cast<double>(before + count), kind});
  }
  samples.push_back({"connections", static_cast<double>(sessions_.size()), ""});
  for (const auto& [reason, count] : refusals_.counts()) {
    samples.push_back({"refusals_total", static_cast<double>(count), reason});
  }
  samples.push_back({"admitted_memory_bytes", static_cast<double>(admission_.admittedBytes()), ""});
  samples.push_back({"memory_limit_bytes", static_cast<double>(settings_.memoryBytes), ""});
  samples.push_back({"store_room_bytes", static_cast<double>(disk_.roomBytes()), ""});
  return samples;
}

asio::awaitable<void> Server::lookEverySecond() {
  asio::steady_timer timer(io_.context());
  while (true) {
    timer.expires_after(kBetweenLooks);
    co_await timer.async_wait(asio::use_awaitable);
    const SteadyTime time = now();
    refusals_.flush(time);
    lines_.flush(time);
    disk_.look(time);
    const auto sessions = sessions_;
    for (const auto& session : sessions) session->endIfIdle(time);
  }
}

asio::awaitable<void> Server::waitForSignals() {
  co_await signals_.async_wait(asio::use_awaitable);
  processLog()->info("shutting down; a second signal exits immediately");
  shutDown();
  co_await signals_.async_wait(asio::use_awaitable);
  ::_exit(1);
}

asio::awaitable<void> Server::waitForReloads() {
  while (true) {
    co_await reloadSignals_.async_wait(asio::use_awaitable);
    const bool isGone = co_await terminalIsGone();
    if (isGone) {
      hangUp();
    } else {
      access_.reload();
      reloadCertificates();
      const auto sessions = sessions_;
      for (const auto& session : sessions) session->endIfNoLongerAllowed();
    }
  }
}

void Server::hangUp() {
  if (shuttingDown_) return;
  processLog()->info("shutting down: the terminal was closed");
  shutDown();
}

// After a SIGHUP, waits a moment: the kernel may send it just before it removes the terminal.
asio::awaitable<bool> Server::terminalIsGone() {
  if (!endsWithTerminal_) co_return false;
  asio::steady_timer moment(io_.context(), kHangup);
  co_await moment.async_wait(asio::use_awaitable);
  co_return !hasControllingTerminal();
}

void Server::reloadCertificates() {
  if (!settings_.tls.enabled) return;
  try {
    context_.tls = openTls(settings_.tls, TlsRole::server);
    processLog()->info("SIGHUP: reloaded the certificates");
  } catch (const Error& error) {
    processLog()->error("SIGHUP: {}; keeping the current certificates; {}", error.what(),
                        error.hint());
  }
}

asio::awaitable<void> Server::watchCertificates() {
  asio::steady_timer day(io_.context());
  while (true) {
    day.expires_after(std::chrono::hours(24));
    co_await day.async_wait(asio::use_awaitable);
    if (context_.tls) warnOfEnd(*context_.tls);
  }
}

void Server::shutDown() {
  shuttingDown_ = true;
  acceptor_.close();
  // A copy, since a session that has nothing to finish may be removed before the next one's turn.
  const auto sessions = sessions_;
  for (const auto& session : sessions) session->drain();
  if (sessions.empty()) {
    stopped_ = true;
    device_.notify();
  }
  asio::co_spawn(io_.context(), endLater(), [](std::exception_ptr error) {
    if (error) std::rethrow_exception(error);
  });
}

// Steps that are not done in time are aborted. An action or a codec that still runs after that
// cannot be interrupted: it ends with the process.
asio::awaitable<void> Server::endLater() {
  asio::steady_timer timer(io_.context(), settings_.drain);
  co_await timer.async_wait(asio::use_awaitable);
  const auto sessions = sessions_;
  for (const auto& session : sessions) session->shutDown();
  timer.expires_after(kUntilLeave);
  co_await timer.async_wait(asio::use_awaitable);
  leave();
}

// Exits without waiting for the device thread, which is in the middle of an action, and without
// destructors, which would wait for it. All records have been completed.
void Server::leave() {
  for (const auto& session : sessions_) session->completeRecords();
  logRefusals();
  const int code = flushRecords(recorder_);
  processLog()->warn("ended without waiting for an action or a codec that took too long");
  flushLog();
  ::_exit(code);
}

}  // namespace cleave
