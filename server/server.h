// Listens, and serves each client in its own session.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/signal_set.hpp>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "common/net/io_thread.h"
#include "server/connection_limits.h"
#include "server/refusals.h"
#include "server/session.h"
#include "server/status_socket.h"

namespace cleave {

class Server {
 public:
  // Binds. `settings` and `device` are borrowed. Throws UsageError "port-in-use", "cannot-bind",
  // "not-writable", and the errors of the access file and of openTls(). `metrics` may be null.
  Server(const ServerSettings& settings, ComputeDevice& device, std::shared_ptr<Metrics> metrics);
  ~Server();

  std::uint16_t port() const { return port_; }
  // Serves on the calling thread, which becomes the device thread, until SIGINT or SIGTERM. Then
  // lets current steps finish, for at most limits.drain_seconds, and notifies their clients. A
  // second signal exits immediately. SIGHUP reloads the access file and the certificates, and ends
  // the sessions of identities that are no longer in the file and of revoked certificates; invalid
  // files are ignored.
  void run();
  // The current values for its metrics. Waits for the io thread, so call it on any other thread.
  Samples samples();

 private:
  boost::asio::awaitable<void> accept();
  boost::asio::awaitable<void> waitForSignals();
  boost::asio::awaitable<void> waitForReloads();
  boost::asio::awaitable<void> watchCertificates();
  boost::asio::awaitable<bool> terminalIsGone();
  void hangUp();
  void reloadCertificates();
  std::string status() const;
  std::string answer(const std::string& request) const;
  bool endSession(std::uint64_t number) const;
  void start(boost::asio::ip::tcp::socket socket);
  void shutDown();
  Samples samplesOnIo() const;
  void sessionEnded(const std::shared_ptr<Session>& session);
  void refuse(boost::asio::ip::tcp::socket socket, const Error& error);
  boost::asio::awaitable<void> lookEverySecond();
  boost::asio::awaitable<void> endLater();
  [[noreturn]] void leave();
  void logRefusals() const;

  const ServerSettings& settings_;
  DeviceExecutor device_;
  Recorder recorder_;
  Access access_;
  Admission admission_;
  Refusals refusals_;
  DiskShares disk_;
  SessionLines lines_;
  ConnectionLimits connections_;
  const std::unique_ptr<Helper> helper_ = makeHelper();  // shared by all codec threads
  CodecExecutor codecs_;
  const std::shared_ptr<CodecQueue> housekeeping_ = codecs_.open();
  IoThread io_;
  ServerContext context_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::signal_set signals_;
  const bool endsWithTerminal_;  // whether a SIGHUP for a closed terminal ends the server
  boost::asio::signal_set reloadSignals_;
  std::uint16_t port_ = 0;
  std::unique_ptr<StatusSocket> statusSocket_;  // null: none

  // io thread
  std::set<std::shared_ptr<Session>> sessions_;
  std::uint64_t nextSession_ = 1;
  std::map<std::string, std::uint64_t> endedSessions_;  // by kind; only admitted ones
  bool shuttingDown_ = false;
  const SteadyTime start_ = now();

  std::atomic<bool> stopped_ = false;
};

}  // namespace cleave
