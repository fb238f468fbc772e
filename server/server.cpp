#include "server/server.h"

#include <unistd.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <utility>

#include "common/core/environment.h"
#include "common/core/log.h"
#include "common/core/process.h"
#include "common/net/frame.h"
#include "common/net/listen.h"
#include "common/net/notices.h"
#include "server/resources.h"
#include "server/status.h"

namespace cleave {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

// Accepting fails for want of descriptors; those of ended sessions come back.
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::chrono::seconds kBetweenFlushes{1};

// Else each client would hear of it, and nobody here.
void checkStore(const std::string& store) {
  std::error_code error;
  std::filesystem::create_directories(store, error);
  if (!error && ::access(store.c_str(), W_OK) != 0) {
    error = {errno, std::generic_category()};
  }
  if (!error) return;
  throw UsageError("not-writable", "the store " + store + " cannot be written: " + error.message(),
                   "name a folder that may be written: --set store=DIR");
}

}  // namespace

Server::Server(const ServerSettings& settings, ComputeDevice& device,
               std::shared_ptr<Metrics> metrics)
    : settings_(settings),
      access_(settings.accessFile, settings.allowedModels),
      admission_(settings, access_),
      connections_(settings.connections),
      context_{settings,
               device,
               device_,
               recorder_,
               std::make_shared<BufferPool>(BufferPool::kMaxRetained, device.hostMemory()),
               io_.context().get_executor(),
               codecThreads_.get_executor(),
               helper_.get(),
               access_,
               admission_,
               refusals_,
               std::move(metrics),
               openTls(settings.tls, TlsRole::server)},
      acceptor_(io_.context()),
      signals_(io_.context(), SIGINT, SIGTERM),
      reloadSignals_(io_.context(), SIGHUP) {
  checkStore(settings.store);
  const tcp::endpoint endpoint(asio::ip::make_address(settings.address), settings.port);
  listenOn(acceptor_, endpoint, {"listen.address", "--set listen.port="});
  port_ = acceptor_.local_endpoint().port();
  statusSocket_ = StatusSocket::open(io_.context().get_executor(), settings.statusSocket,
                                     [this] { return status(); });
}

Server::~Server() { io_.stop(); }

void Server::run() {
  // What these coroutines could throw is a bug: it ends the process, and does not vanish.
  const auto rethrow = [](std::exception_ptr error) {
    if (error) std::rethrow_exception(error);
  };
  asio::co_spawn(io_.context(), accept(), rethrow);
  asio::co_spawn(io_.context(), waitForSignals(), rethrow);
  asio::co_spawn(io_.context(), waitForReloads(), rethrow);
  asio::co_spawn(io_.context(), watchCertificates(), rethrow);
  asio::co_spawn(io_.context(), flushRefusals(), rethrow);
  if (statusSocket_) asio::co_spawn(io_.context(), statusSocket_->serve(), rethrow);
  device_.runUntil([this] { return stopped_.load(); });
  codecThreads_.join();
  recorder_.flush();
  const std::string refused = refusals_.summary();
  if (!refused.empty()) processLog()->info("refused or ended for a client's fault: {}", refused);
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
  if (shuttingDown_) return;  // an accept that was under way at the end
  boost::system::error_code error;
  const tcp::endpoint peer = socket.remote_endpoint(error);
  if (error) return;  // it has gone already
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

// With what the kernel takes at once, and no answer: whoever comes too often gets no more of us.
// Within TLS not a word: a handshake is the dearest thing that a stranger can ask for.
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
    // Not here: io must not wait for it.
    asio::post(codecThreads_, [pool = context_.pool, idle = sessions_.empty()] {
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

Samples Server::samples() {
  auto samples = askOn(io_.context().get_executor(), [this] { return samplesOnIo(); });
  return samples ? *std::move(samples) : Samples{};
}

Samples Server::samplesOnIo() const {
  double outbox = 0, mailbox = 0;
  std::map<std::string, std::uint64_t> open = {{"run", 0}, {"probe", 0}};
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
  return samples;
}

asio::awaitable<void> Server::flushRefusals() {
  asio::steady_timer timer(io_.context());
  while (true) {
    timer.expires_after(kBetweenFlushes);
    co_await timer.async_wait(asio::use_awaitable);
    refusals_.flush(now());
  }
}

asio::awaitable<void> Server::waitForSignals() {
  co_await signals_.async_wait(asio::use_awaitable);
  processLog()->info("shutting down; once more to end at once");
  shutDown();
  co_await signals_.async_wait(asio::use_awaitable);
  ::_exit(1);
}

asio::awaitable<void> Server::waitForReloads() {
  while (true) {
    co_await reloadSignals_.async_wait(asio::use_awaitable);
    access_.reload();
    reloadCertificates();
  }
}

void Server::reloadCertificates() {
  if (!settings_.tls.enabled) return;
  try {
    context_.tls = openTls(settings_.tls, TlsRole::server);
    processLog()->info("SIGHUP: certificates read anew, for connections to come");
  } catch (const Error& error) {
    processLog()->error("SIGHUP: {}; the certificates of before stay in use; {}", error.what(),
                        error.fix());
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
  // A copy: a session that has nothing to end may be gone before the next one's turn.
  const auto sessions = sessions_;
  for (const auto& session : sessions) session->drain();
  if (sessions.empty()) {
    stopped_ = true;
    device_.notify();
    return;
  }
  asio::co_spawn(io_.context(), endLater(), [](std::exception_ptr error) {
    if (error) std::rethrow_exception(error);
  });
}

// Steps that are not done in time end where they are.
asio::awaitable<void> Server::endLater() {
  asio::steady_timer timer(io_.context(), settings_.drain);
  co_await timer.async_wait(asio::use_awaitable);
  const auto sessions = sessions_;
  for (const auto& session : sessions) session->shutDown();
}

}  // namespace cleave
