// Listens, and serves each client in a session of its own.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/thread_pool.hpp>
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
  // Binds. Both are borrowed. Throws UsageError "port-in-use", "cannot-bind", "not-writable", and
  // those of the access file and of openTls().
  // `metrics` may be null.
  Server(const ServerSettings& settings, ComputeDevice& device, std::shared_ptr<Metrics> metrics);
  ~Server();

  std::uint16_t port() const { return port_; }
  // Serves on the calling thread, which becomes the device thread, until SIGINT or SIGTERM: steps
  // under way end, for limits.drain_seconds at most, and their clients are told. A second signal
  // ends the process at once. SIGHUP reads the access file and the certificates anew, for
  // connections to come; files that are wrong change nothing.
  void run();
  // For its metrics, as things stand; waits for the io thread. Not on that; any other thread.
  Samples samples();

 private:
  boost::asio::awaitable<void> accept();
  boost::asio::awaitable<void> waitForSignals();
  boost::asio::awaitable<void> waitForReloads();
  boost::asio::awaitable<void> watchCertificates();
  void reloadCertificates();
  std::string status() const;
  void start(boost::asio::ip::tcp::socket socket);
  void shutDown();
  Samples samplesOnIo() const;
  void sessionEnded(const std::shared_ptr<Session>& session);
  void refuse(boost::asio::ip::tcp::socket socket, const Error& error);
  boost::asio::awaitable<void> flushRefusals();
  boost::asio::awaitable<void> endLater();

  const ServerSettings& settings_;
  DeviceExecutor device_;
  Recorder recorder_;
  Access access_;
  Admission admission_;
  Refusals refusals_;
  ConnectionLimits connections_;
  const std::unique_ptr<Helper> helper_ = makeHelper();  // of the codec thread
  boost::asio::thread_pool codecThreads_{1};
  IoThread io_;
  ServerContext context_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::signal_set signals_;
  boost::asio::signal_set reloadSignals_;
  std::uint16_t port_ = 0;
  std::unique_ptr<StatusSocket> statusSocket_;  // null: none

  // io thread
  std::set<std::shared_ptr<Session>> sessions_;
  std::uint64_t nextSession_ = 1;
  std::map<std::string, std::uint64_t> endedSessions_;  // by kind; admitted ones
  bool shuttingDown_ = false;
  const SteadyTime start_ = now();

  std::atomic<bool> stopped_ = false;
};

}  // namespace cleave
