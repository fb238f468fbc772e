#include "server/server.h"

#include <unistd.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/core/environment.h"
#include "common/core/log.h"

namespace cleave {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

// Accepting fails for want of descriptors; those of ended sessions come back.
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::size_t kMostHandshakes = 128;  // connections at once beyond the sessions

[[noreturn]] void refuseBind(const ServerSettings& settings,
                             const boost::system::error_code& error) {
  const std::string place = settings.address + ":" + std::to_string(settings.port);
  if (error == asio::error::address_in_use) {
    throw UsageError("port-in-use", "cannot listen on " + place + ": another program does already",
                     "stop it, or choose another port: --set listen.port=" +
                         std::to_string(settings.port == 65535 ? 4800 : settings.port + 1));
  }
  throw UsageError("cannot-bind", "cannot listen on " + place + ": " + error.message(),
                   error == asio::error::access_denied
                       ? "choose a port from 1024 on: --set listen.port=4800"
                       : "set listen.address to an address of this machine");
}

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

Server::Server(const ServerSettings& settings, ComputeDevice& device)
    : settings_(settings),
      access_(settings.accessFile, settings.allowedModels),
      admission_(settings, access_),
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
               openTls(settings.tls, TlsRole::server)},
      acceptor_(io_.context()),
      signals_(io_.context(), SIGINT, SIGTERM),
      reloadSignals_(io_.context(), SIGHUP) {
  checkStore(settings.store);
  const tcp::endpoint endpoint(asio::ip::make_address(settings.address), settings.port);
  boost::system::error_code error;
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) refuseBind(settings, error);
  port_ = acceptor_.local_endpoint().port();
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
  device_.runUntil([this] { return stopped_.load(); });
  codecThreads_.join();
  recorder_.flush();
}

asio::awaitable<void> Server::accept() {
  while (acceptor_.is_open()) {
    auto [error, socket] = co_await acceptor_.async_accept(asio::as_tuple(asio::use_awaitable));
    if (!error) {
      start(std::move(socket));
    } else if (acceptor_.is_open()) {
      processLog()->warn("cannot accept a connection: {}", error.message());
      asio::steady_timer pause(io_.context(), kAcceptPause);
      co_await pause.async_wait(asio::use_awaitable);
    }
  }
}

void Server::start(tcp::socket socket) {
  // Closed at once: an accept that was under way at the end, or connections that never say Hello.
  if (shuttingDown_ || sessions_.size() >= settings_.maxSessions + kMostHandshakes) return;
  auto session = std::make_shared<Session>(context_, std::move(socket), nextSession_++);
  sessions_.insert(session);
  asio::co_spawn(io_.context(), session->serve(), [this, session](std::exception_ptr error) {
    sessions_.erase(session);
    if (error) std::rethrow_exception(error);
    // Not here: io must not wait for it.
    asio::post(codecThreads_, [pool = context_.pool, idle = sessions_.empty()] {
      if (idle) pool->clear();
      releaseMemory();
    });
    if (sessions_.empty()) device_.post([&compute = context_.compute] { compute.releaseMemory(); });
    if (shuttingDown_ && sessions_.empty()) {
      stopped_ = true;
      device_.notify();
    }
  });
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
  for (const auto& session : sessions_) session->shutDown();
  if (!sessions_.empty()) return;
  stopped_ = true;
  device_.notify();
}

}  // namespace cleave
