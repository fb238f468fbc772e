// One client's connection, from the handshake and admission through a run or a probe of the link to
// its end; or that of another server, which is an edge of a run.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/core/clock.h"
#include "common/files/identity.h"
#include "common/net/connection.h"
#include "proto/wire.pb.h"
#include "server/access/access.h"
#include "server/access/refusals.h"
#include "server/access/server_certificates.h"
#include "server/config/settings.h"
#include "server/run/admission.h"
#include "server/run/run_table.h"
#include "server/run/session_lines.h"
#include "server/sessions/idle.h"
#include "server/status/status.h"

namespace cleave {

// Resources shared by all sessions; they outlive the sessions.
struct SessionContext {
  const ServerSettings& settings;
  boost::asio::any_io_executor io;
  const ServerCertificates& certificates;
  Access& access;
  Admission& admission;
  RunTable& runs;
  Refusals& refusals;
  SessionLines& lines;
};

class ProbeSession;

// io thread.
class Session {
 public:
  Session(const SessionContext& context, boost::asio::ip::tcp::socket socket, std::uint64_t number);
  ~Session();

  // Serves the client until the session ends. Does not throw: errors end only this session, and are
  // logged.
  boost::asio::awaitable<void> serve();
  // Ends the session. If the client has sent its Hello, the client receives the reason.
  void shutDown();
  // Ends the session when the current step is done.
  void drain();
  // Ends an admitted session and sends `error` to its client.
  void end(const Error& error);
  // Ends the session if its client has been idle for too long. Call it about once per second.
  void endIfIdle(SteadyTime time);
  // Call after the access file and the certificates have been reloaded: ends the session if its
  // client would no longer be admitted.
  void endIfNoLongerAllowed();

  std::uint64_t number() const { return number_; }
  // Whether a client was admitted, so that there may be memory to release.
  bool wasAdmitted() const { return kind_ != nullptr; }
  const std::string& identity() const { return identity_; }
  // "run", "trial" (of codecs), "probe" or "edge"; only for an admitted session.
  const char* kind() const { return kind_; }
  // Nullopt if nothing is admitted.
  std::optional<SessionStatus> status() const;
  // Queue lengths of the session.
  std::size_t outboxEntries() const { return connection_->outbox().size(); }
  std::size_t mailboxEntries() const { return seat_ ? seat_->run().mailboxEntries() : 0; }

 private:
  boost::asio::awaitable<void> open();
  boost::asio::awaitable<wire::Hello> readHello();
  boost::asio::awaitable<void> openRun(wire::Hello hello);
  boost::asio::awaitable<void> continueRun(RunRequest request);
  boost::asio::awaitable<void> takeSeat(const RunRequest& request);
  boost::asio::awaitable<void> openProbe(wire::Hello hello);
  boost::asio::awaitable<void> openEdge(wire::Hello hello);
  boost::asio::awaitable<void> refuse(std::string answer);
  boost::asio::awaitable<bool> waitForMembers();
  boost::asio::awaitable<void> waitForCheckpoint(const RunRequest& request);
  boost::asio::awaitable<void> waitForTurn(const RunRequest& request);
  boost::asio::awaitable<void> pauseWhileWaiting(const Missing& missing);
  boost::asio::awaitable<bool> serveRun();
  boost::asio::awaitable<void> serveEdge();
  boost::asio::awaitable<void> leaveSeat(bool mayPark);
  bool waitsForServer() const;
  std::string name() const;

  const SessionContext& context_;
  std::shared_ptr<Connection> connection_;
  const std::uint64_t number_;
  const SteadyTime start_ = now();
  // After the Hello: the identity in the certificate, if there is one.
  std::string identity_ = kLocalIdentity;
  bool clientIsLocal_ = false;
  bool helloCame_ = false;
  IdleClock idle_{start_};
  double maxIdleSeconds_ = 0;
  const char* kind_ = nullptr;  // the kind of an admitted session
  std::exception_ptr ended_;    // by end()
  // Of the cohort that the client of a trial wants to join.
  std::vector<std::string> connectedMembers_;
  // After admission, exactly one of these is set.
  std::shared_ptr<Seat> seat_;
  std::unique_ptr<ProbeSession> probe_;
  std::shared_ptr<RunEdge> edge_;
  std::string edgeRun_;  // id of the edge's run
  std::string reason_;   // why the client has left its run; empty: the run is done
};

}  // namespace cleave
