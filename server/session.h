// One client's connection: handshake, admission, training or a probe of the link, and the end.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/core/buffer.h"
#include "common/core/codec_executor.h"
#include "common/core/executor.h"
#include "common/core/identity.h"
#include "common/core/log.h"
#include "common/core/record.h"
#include "common/device/compute_device.h"
#include "common/net/connection.h"
#include "common/run/metrics.h"
#include "proto/wire.pb.h"
#include "server/admission.h"
#include "server/disk_share.h"
#include "server/idle.h"
#include "server/pace.h"
#include "server/refusals.h"
#include "server/session_lines.h"
#include "server/settings.h"

namespace cleave {

// Shared by all sessions, and outlives them.
struct ServerContext {
  const ServerSettings& settings;
  ComputeDevice& compute;
  DeviceExecutor& device;
  Recorder& recorder;
  std::shared_ptr<BufferPool> pool;
  boost::asio::any_io_executor io;
  CodecExecutor& codecs;
  Helper* helper;  // shared by all codec threads; null: none
  Access& access;
  Admission& admission;
  Refusals& refusals;
  DiskShares& disk;
  SessionLines& lines;
  std::shared_ptr<Metrics> metrics;       // null: not exported
  std::shared_ptr<const TlsContext> tls;  // for new connections; null: no TLS. io thread
};

class ProbeSession;

// What `cleave-server status` shows of a session.
struct SessionStatus {
  std::uint64_t number = 0;
  std::string identity;
  std::string peer;
  double seconds = 0;           // since it connected
  std::string kind = "run";     // Session::kind()
  std::string run;              // its id; empty: a probe
  std::string model;            // empty: a probe
  std::size_t memoryBytes = 0;  // admitted
  std::uint64_t epoch = 0;
  std::optional<PaceState> pace;
};

class Session {
 public:
  Session(ServerContext& context, boost::asio::ip::tcp::socket socket, std::uint64_t number);
  ~Session();

  // Serves the client until the session ends. Does not throw: errors end only this session, and are
  // logged. io thread.
  boost::asio::awaitable<void> serve();
  // Ends the session and tells the client why, unless the client has not sent its Hello.
  void shutDown();
  // Ends it when the current step is done.
  void drain();
  // Ends an admitted session and sends `error` to its client.
  void end(const Error& error);
  // Ends it if its client has been idle for too long. Call it about once per second.
  void endIfIdle(SteadyTime time);
  // Call after the access file and the certificates have been reloaded: ends the session if its
  // client would no longer be admitted.
  void endIfNoLongerAllowed();
  std::uint64_t number() const { return number_; }
  // For a process that exits without waiting for the device: completes the run's records with the
  // current state. io thread.
  void completeRecords();
  // Whether a client was admitted, so that there may be memory to release.
  bool wasAdmitted() const { return admitted_; }
  // Nothing if no run or probe is admitted at the moment. io thread.
  std::optional<SessionStatus> status() const;
  // "run" or "probe"; only for an admitted session.
  const char* kind() const { return kind_; }  // "run", "trial" (of codecs) or "probe"
  // Queue lengths of the session.
  std::size_t outboxEntries() const { return connection_->outbox().size(); }
  std::size_t mailboxEntries() const;

 private:
  struct Run;
  boost::asio::awaitable<void> open();
  boost::asio::awaitable<void> openRun(wire::Hello hello);
  void openRecords();
  bool mayFetchWeights() const;
  boost::asio::awaitable<void> refuse(std::string answer);
  boost::asio::awaitable<void> serveRun();
  boost::asio::awaitable<void> closeRun();
  void buildLater(Run& run);
  void log(spdlog::level::level_enum level, const std::string& line);
  std::string name() const;

  ServerContext& context_;
  std::shared_ptr<Connection> connection_;
  const std::uint64_t number_;
  const SteadyTime start_ = now();
  std::string identity_ = kLocalIdentity;  // after the Hello, the certificate's identity
  bool clientIsLocal_ = false;
  bool helloCame_ = false;
  bool admitted_ = false;
  bool serving_ = false;  // the run's worker is running
  bool draining_ = false;
  IdleClock idle_{start_};
  double mostIdleSeconds_ = 0;
  const char* kind_ = "run";
  // After admission, exactly one of these is set.
  std::unique_ptr<Run> run_;
  std::unique_ptr<ProbeSession> probe_;
};

}  // namespace cleave
