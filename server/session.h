// One client while it is connected: handshake, admission, training or a probe of the link, the end.
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
#include "common/model/compute_device.h"
#include "common/net/connection.h"
#include "daemon/metrics.h"
#include "proto/wire.pb.h"
#include "server/admission.h"
#include "server/disk_share.h"
#include "server/idle.h"
#include "server/pace.h"
#include "server/refusals.h"
#include "server/session_lines.h"
#include "server/settings.h"

namespace cleave {

// What all sessions share. Outlives them.
struct ServerContext {
  const ServerSettings& settings;
  ComputeDevice& compute;
  DeviceExecutor& device;
  Recorder& recorder;
  std::shared_ptr<BufferPool> pool;
  boost::asio::any_io_executor io;
  CodecExecutor& codecs;
  Helper* helper;  // of all codec threads; null: none
  Access& access;
  Admission& admission;
  Refusals& refusals;
  DiskShares& disk;
  SessionLines& lines;
  std::shared_ptr<Metrics> metrics;       // null: nobody asks
  std::shared_ptr<const TlsContext> tls;  // of new connections; null: plain. io thread
};

class ProbeSession;

// What the server's operator is shown of a session (cleave-server status).
struct SessionStatus {
  std::uint64_t number = 0;
  std::string identity;
  std::string peer;
  double seconds = 0;           // since it was connected
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

  // Serves the client to the end. Throws nothing: whatever goes wrong ends this session alone, and
  // is logged. io thread.
  boost::asio::awaitable<void> serve();
  // Ends the session; the client is told why. A client that has not said Hello is not.
  void shutDown();
  // Ends it when the step under way is done.
  void drain();
  // Ends an admitted session with `error`, which its client is told.
  void end(const Error& error);
  // Ends it if its client has done nothing for too long. Call it about once per second.
  void endIfIdle(SteadyTime time);
  // After the access file and the certificates have been reloaded: ends the session if its client
  // would no longer be let in.
  void endIfNoLongerAllowed();
  std::uint64_t number() const { return number_; }
  // For a process that ends without waiting for the device: completes the run's records as they
  // are. io thread.
  void completeRecords();
  // Whether a client was admitted, so that there may be memory to give back.
  bool wasAdmitted() const { return admitted_; }
  // Nothing where none is admitted, or none any more. io thread.
  std::optional<SessionStatus> status() const;
  // "run" or "probe", of an admitted one.
  const char* kind() const { return probe_ ? "probe" : "run"; }
  // What waits in it.
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
  std::string identity_ = kLocalIdentity;  // the certificate's, once the Hello has come
  bool clientIsLocal_ = false;
  bool helloCame_ = false;
  bool admitted_ = false;
  bool serving_ = false;  // the run's worker is at work
  bool draining_ = false;
  IdleClock idle_{start_};
  double mostIdleSeconds_ = 0;
  // One of the two, once admitted.
  std::unique_ptr<Run> run_;
  std::unique_ptr<ProbeSession> probe_;
};

}  // namespace cleave
