// Listens, and serves each client in its own session.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/signal_set.hpp>
#include <cstdint>
#include <memory>
#include <optional>

#include "common/device/compute_device.h"
#include "common/net/streams/io_thread.h"
#include "common/replicas/gradient_reducer.h"
#include "common/resources/buffer.h"
#include "common/resources/codec_executor.h"
#include "common/resources/executor.h"
#include "common/resources/fork_join_pair.h"
#include "common/run/metrics.h"
#include "server/access/access.h"
#include "server/access/refusals.h"
#include "server/access/server_certificates.h"
#include "server/config/connection_limits.h"
#include "server/config/settings.h"
#include "server/run/admission.h"
#include "server/run/dialer.h"
#include "server/run/run_table.h"
#include "server/run/session_lines.h"
#include "server/sessions/operator_requests.h"
#include "server/sessions/session.h"
#include "server/sessions/session_table.h"
#include "server/status/status_socket.h"
#include "server/store/run_store.h"

namespace cleave {

class Server {
 public:
  // Binds. `settings` and `device` are borrowed. Throws UsageError "port-in-use", "cannot-bind",
  // "not-writable", and the errors of the access file, of openTls() and of the relay's secret.
  // `metrics` may be null.
  // `stages`: computes the stages in processes of their own; null: this process does.
  Server(const ServerSettings& settings, ComputeDevice& device, std::shared_ptr<Metrics> metrics,
         StageProcesses* stages = nullptr);
  ~Server();

  std::uint16_t port() const { return port_; }
  // Serves on the calling thread, which becomes the device thread, until SIGINT or SIGTERM. Then
  // waits at most limits.drain_seconds for current steps to finish, and notifies their clients. A
  // second signal exits immediately. SIGHUP reloads the access file and the certificates, and ends
  // the sessions of identities that are no longer in the file and of revoked certificates; invalid
  // files are ignored.
  void run();
  // Returns the current values for the metrics. Waits for the io thread, so call it on another
  // thread.
  Samples samples();

 private:
  void admit(boost::asio::ip::tcp::socket socket);
  void start(boost::asio::ip::tcp::socket socket, const boost::asio::ip::address& client);
  void refuse(boost::asio::ip::tcp::socket socket, const Error& error);
  void sessionEnded(const std::shared_ptr<Session>& session);
  void runClosed();
  void releaseUnused();
  void stopIfDone();
  boost::asio::awaitable<void> lookEverySecond();
  boost::asio::awaitable<void> waitForReloads();
  void reload();
  boost::asio::awaitable<bool> terminalIsGone();
  void hangUp();
  boost::asio::awaitable<void> waitForSignals();
  void shutDown();
  boost::asio::awaitable<void> endLater();
  void stop();
  [[noreturn]] void leave();
  void logRefusals() const;

  const ServerSettings& settings_;
  ComputeDevice& compute_;
  DeviceExecutor device_;
  Access access_;
  ServerCertificates certificates_;
  Admission admission_;
  Refusals refusals_;
  SessionLines lines_;
  ConnectionLimits connections_;
  const std::shared_ptr<BufferPool> pool_;
  const std::unique_ptr<ForkJoinPair> helper_ = makeForkJoinPair();  // shared by all codec threads
  CodecExecutor codecs_;
  const std::shared_ptr<CodecQueue> housekeeping_ = codecs_.open();
  IoThread io_;
  RunStore store_;
  const std::optional<ReplicaGroup> replicas_;
  const RunResources resources_;
  RunTable runs_;
  const SessionContext context_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::signal_set signals_;
  const bool endsWithTerminal_;  // whether a SIGHUP for a closed terminal ends the server
  boost::asio::signal_set reloadSignals_;
  const std::uint16_t port_;
  SessionTable sessions_;  // io thread
  const OperatorRequests operator_;
  const std::unique_ptr<StatusSocket> statusSocket_;  // null: none
  std::unique_ptr<Dialer> dialer_;                    // null: clients connect directly

  std::atomic<bool> stopped_ = false;
};

}  // namespace cleave
