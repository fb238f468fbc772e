#include "server/sessions/session.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <cmath>
#include <exception>
#include <span>
#include <utility>

#include "common/core/log.h"
#include "common/core/printable.h"
#include "common/files/environment.h"
#include "common/files/sha256.h"
#include "common/link/edge.h"
#include "common/link/probe/trial.h"
#include "common/link/wire_messages.h"
#include "common/net/connection_messages.h"
#include "common/topology/turns.h"
#include "server/cohort/turn_queue.h"
#include "server/run/hello.h"
#include "server/run/latch.h"
#include "server/sessions/probe_session.h"

namespace cleave {
namespace {

namespace asio = boost::asio;

// Checks what identifies the client's connection.
void checkConnections(const wire::Hello& hello) {
  constexpr auto kMax = static_cast<int>(2 * kMaxConnectionIds);
  const auto& ids = hello.connections();
  if (ids.empty() || ids.size() > kMax || std::find(ids.begin(), ids.end(), 0) != ids.end()) {
    throw ProtocolError(
        "bad-metadata",
        fmt::format("a Hello has {} connections; 1 to {}, none of them 0, are allowed", ids.size(),
                    kMax));
  }
  if (hello.generation() == 0 || hello.generation() >= kMaxGeneration) {
    throw ProtocolError("bad-metadata", fmt::format("a Hello has the generation {}; 1 to {} are "
                                                    "allowed",
                                                    hello.generation(), kMaxGeneration - 1));
  }
}

// Checks the fields that continue a run.
void checkState(const wire::Hello& hello) {
  constexpr int kMaxCommits = 8;
  const int commits = std::max(hello.committed_size(), hello.member().saved_size());
  if (commits > kMaxCommits) {
    throw ProtocolError(
        "bad-metadata",
        fmt::format("a Hello has {} commits; at most {} are allowed", commits, kMaxCommits));
  }
  const std::size_t digest = hello.weights_sha256().size();
  if (digest != 0 && digest != kSha256Bytes) {
    throw ProtocolError("bad-metadata",
                        fmt::format("the digest of the initial weights has {} bytes instead of {}",
                                    digest, kSha256Bytes));
  }
  if (hello.take_over() && hello.token() != 0) {
    throw ProtocolError("bad-metadata", "a Hello has both a token and take_over");
  }
  if (hello.kind() != wire::Hello::TRIAL) checkConnections(hello);
}

}  // namespace

Session::Session(const SessionContext& context, asio::ip::tcp::socket socket, std::uint64_t number)
    : context_(context), number_(number) {
  boost::system::error_code error;
  const auto remote = socket.remote_endpoint(error);
  boost::system::error_code noLocal;
  const auto local = socket.local_endpoint(noLocal);
  clientIsLocal_ =
      !error && (remote.address().is_loopback() || remote.address() == local.address());
  ConnectionOptions options = context_.settings.connection;
  options.tls = context_.certificates.tls();
  connection_ = std::make_shared<Connection>(std::move(socket), std::move(options));
}

Session::~Session() = default;

// The peer's name in the log: its address, and the name in its certificate if it has one.
std::string Session::name() const {
  const std::string& identity = connection_->identity();
  return fmt::format("session {} from {}{}", number_, connection_->peer(),
                     identity.empty() ? "" : fmt::format(" ({})", identity));
}

// ---- Serving ----

asio::awaitable<void> Session::serve() {
  std::optional<std::string> refused;
  bool mayPark = false;
  try {
    co_await open();
  } catch (const Error& error) {
    context_.refusals.note(name(), error, connection_->identity());
    refused = failureMetadata(error);
    mayPark = error.kind() == ErrorKind::link;
    reason_ = error.what();
  } catch (const std::exception& error) {
    reason_ = "its session could not be opened";
    processLog()->error("{}: failed: {}", name(), error.what());
    refused = failureMetadata(
        RunError("internal-error", "the server failed to open the session; see its log"));
  }
  if (refused) {
    // If no Hello arrived, the connection has already sent its reply, if any.
    if (helloCame_) co_await refuse(*refused);
  } else if (probe_) {
    co_await probe_->serve();
  } else if (edge_) {
    co_await serveEdge();
  } else {
    mayPark = co_await serveRun();
  }
  co_await leaveSeat(mayPark);
}

asio::awaitable<void> Session::open() {
  wire::Hello hello = co_await readHello();
  connection_->throttleBy(context_.access.throttle(identity_));
  maxIdleSeconds_ =
      context_.access.of(identity_).idleSeconds.value_or(context_.settings.share.idleSeconds);
  switch (hello.kind()) {
    case wire::Hello::RUN:
    case wire::Hello::TRIAL:
      co_return co_await openRun(std::move(hello));
    case wire::Hello::PROBE:
      co_return co_await openProbe(std::move(hello));
    case wire::Hello::EDGE:
      co_return co_await openEdge(std::move(hello));
    default:
      throw ProtocolError("bad-metadata",
                          fmt::format("a Hello has the kind {}", static_cast<int>(hello.kind())));
  }
}

asio::awaitable<wire::Hello> Session::readHello() {
  const auto frame = co_await connection_->readHandshakeFrame(ConnectionState::awaitingHello);
  helloCame_ = true;
  if (!connection_->identity().empty()) identity_ = connection_->identity();
  // The certificates may have been reloaded since the handshake.
  if (const auto& tls = context_.certificates.tls()) connection_->checkPeerAgain(*tls);
  auto hello = parseMetadata<wire::Hello>(
      FrameKind::hello, std::as_bytes(std::span(frame.metadata.data(), frame.metadata.size())));
  co_return hello;
}

asio::awaitable<void> Session::openRun(wire::Hello hello) {
  checkState(hello);
  RunSpec spec = runSpecFromWire(hello.run_spec());
  RunRequest request{std::move(hello), std::move(spec), identity_,
                     number_,          clientIsLocal_,  !connection_->identity().empty()};
  if (request.hello.token() != 0) co_return co_await continueRun(std::move(request));
  if (request.isTrial() && request.hello.has_member()) {
    connectedMembers_ = context_.runs.checkMember(request);
  }
  if (request.spec.cohort.isRelay()) {
    context_.runs.check(request);
    kind_ = "run";  // as an admitted session, it ends if its certificate is revoked
    co_await waitForTurn(request);
  } else {
    seat_ = context_.runs.admit(request);
  }
  kind_ = request.isTrial() ? "trial" : "run";
  if (!seat_) co_await waitForCheckpoint(request);
  ServedRun& run = seat_->run();
  bool opensRun = run.isComplete();
  if (!opensRun) opensRun = co_await waitForMembers();
  if (opensRun) co_await run.open();
  seat_->throwIfEnded();
  co_await takeSeat(request);
  if (seat_.get() != &run.owner()) co_return;
  run.start();
  run.log(spdlog::level::info, fmt::format("{}: {}", name(), run.summary()));
}

asio::awaitable<void> Session::continueRun(RunRequest request) {
  seat_ = context_.runs.find(request);
  kind_ = "run";
  co_await seat_->storeConnection(request.hello);
  seat_ = context_.runs.find(request);  // the run may have ended in the meantime
  co_await takeSeat(request);
  seat_->run().log(spdlog::level::info, fmt::format("{}: continues the run, generation {}", name(),
                                                    request.hello.generation()));
}

asio::awaitable<void> Session::pauseWhileWaiting(const Missing& missing) {
  constexpr std::chrono::seconds kTryEvery{1};
  const std::string roster = toWire(missing);
  co_await connection_->writeHandshakeFrame(FrameKind::roster, roster);
  co_await context_.runs.waitForClosed(kTryEvery);
  if (ended_) std::rethrow_exception(ended_);
}

// In a relay, waits until the member has its turn, or all turns are over.
asio::awaitable<void> Session::waitForTurn(const RunRequest& request) {
  const Cohort& cohort = request.spec.cohort;
  checkAnnounced(request);
  const std::uint32_t number = memberNumber(request);
  const std::uint64_t turns = request.hello.member().rounds() * cohort.size();
  const std::string spec = digestOf(request.spec);
  const auto expected = context_.runs.expectMember(request);
  logAbout(identity_, request.runId())
      ->info("{}: waits for its turn in the cohort {}", name(), printable(cohort.id));
  std::optional<SteadyTime> vacantSince;  // no other member trains, as far as this one has seen
  while (!seat_) {
    const std::optional<TurnRecord> last = co_await context_.runs.lastTurn(request, spec);
    if (last) {
      checkAgreed(*last, request);
      checkSameData(last->roster, {number, &request.hello});
    }
    std::optional<std::uint32_t> running;  // the member that has its turn
    bool isParked = false;
    if (const auto seat = context_.runs.seatOfCohort(request)) {
      running = seat->number();
      isParked = seat->isParked();
      if (*running != number) checkSameRun(seat->request(), request);
    }
    const bool isOwn = running == number, isOthers = running && !isOwn;
    if (isOthers || !vacantSince) vacantSince = now();
    const std::uint64_t next = last ? turnsOf(last->roster).back() + 1 : 0;
    const TurnQueue queue{next, context_.runs.expectedNumbers(cohort, spec), turns};
    const bool hasWaited = last && secondsSince(*vacantSince) >= cohort.waitSeconds;
    if (isOwn || (!isOthers && queue.mayTake(number, cohort.size(), hasWaited))) {
      try {
        seat_ = context_.runs.admit(request);
        continue;
      } catch (const RunError& error) {
        // Its earlier connection, or the last turn, is being closed.
        const bool isClosing =
            error.code() == "run-in-use" || (isParked && error.code() == "member-connected");
        if (!isClosing) throw;
      }
    }
    Missing missing{{}, isOthers, cohort.members[next % cohort.size()]};
    if (isOthers) missing.turn = cohort.members[*running];
    co_await pauseWhileWaiting(missing);
  }
}

// Waits until the members of a run in progress have made a checkpoint, from which this one takes
// part.
asio::awaitable<void> Session::waitForCheckpoint(const RunRequest& request) {
  const std::weak_ptr<Seat> running = context_.runs.seatOfCohort(request);
  const std::shared_ptr<Latch> done = running.lock()->run().done();
  const Announced member{memberNumber(request), &request.hello};
  const auto expected = context_.runs.expectMember(request);
  const Missing inProgress{{}, true};
  logAbout(identity_, request.runId())
      ->info("{}: joins the cohort {} at its next checkpoint", name(),
             printable(request.spec.cohort.id));
  while (!seat_) {
    co_await pauseWhileWaiting(inProgress);
    if (done->isOpen()) {
      throw RunError("cohort-done", "the run of the cohort has ended before this member joined",
                     "ask another member for its model.safetensors");
    }
    const auto first = running.lock();
    if (first && !first->run().isClosing()) {
      first->run().requestCheckpointFor(member);
      continue;
    }
    try {
      seat_ = context_.runs.admit(request);
    } catch (const RunError& error) {
      if (error.retrySeconds() == 0) throw;  // else the others are connecting, or closing the run
    }
  }
}

// Tells the client for whom it waits, until the run is open. Returns whether this session must open
// it, because it goes on without those who are missing; usually, the member that comes last does.
// Throws RunError "cohort-done" if others have ended the run, and too few come within
// cohort.wait_seconds.
asio::awaitable<bool> Session::waitForMembers() {
  ServedRun& run = seat_->run();
  run.log(spdlog::level::info,
          fmt::format("{}: waits for {}", name(),
                      printable(fmt::format("{}", fmt::join(run.missing(), ", ")))));
  const bool isLate = co_await context_.runs.comesTooLate(seat_->request());
  const SteadyTime begun = now();
  do {
    const std::string missing = toWire(Missing{run.missing(), false});
    co_await connection_->writeHandshakeFrame(FrameKind::roster, missing);
    if (ended_) std::rethrow_exception(ended_);
    seat_->throwIfEnded();
    const Cohort& cohort = seat_->request().spec.cohort;
    if (!context_.runs.expectsMember(cohort) && run.goesOnWithout(*seat_)) {
      run.log(spdlog::level::warn,
              fmt::format("{}: the run is opened without {}", name(),
                          printable(fmt::format("{}", fmt::join(run.missing(), ", ")))));
      co_return true;
    }
    const std::size_t needed = cohort.needsAll() ? cohort.size() : cohort.minMembers;
    const bool lacksMembers = cohort.size() - run.missing().size() < needed;
    if (isLate && lacksMembers && secondsSince(begun) >= cohort.waitSeconds) {
      throw RunError("cohort-done",
                     fmt::format("the run of the cohort has ended without this member, and too "
                                 "few others have connected within {} s (cohort.wait_seconds)",
                                 cohort.waitSeconds),
                     "ask another member for its model.safetensors; for a new run, set another "
                     "cohort.id");
    }
  } while (!co_await run.waitUntilOpen());
  co_return false;
}

asio::awaitable<void> Session::takeSeat(const RunRequest& request) {
  seat_->attach(request, connection_);
  wire::HelloOk ok = seat_->run().helloOk(*seat_);
  for (const std::string& name : connectedMembers_) ok.add_connected(name);
  const std::string answer = ok.SerializeAsString();
  co_await connection_->writeHandshakeFrame(FrameKind::helloOk, answer);
  seat_->throwIfEnded();  // the run may have ended in the meantime
}

asio::awaitable<void> Session::openProbe(wire::Hello hello) {
  probe_ = std::make_unique<ProbeSession>(context_, connection_, identity_, number_, hello);
  kind_ = "probe";
  co_await probe_->accept();
}

// The token proves that the client of the run has asked for this connection.
asio::awaitable<void> Session::openEdge(wire::Hello hello) {
  if (hello.has_run_spec() || hello.token() != 0) {
    throw ProtocolError("bad-metadata", "the Hello of a direct link has fields of a run");
  }
  edge_ = context_.runs.findEdge(hello.run_id(), hello.edge_token());
  kind_ = "edge";
  edgeRun_ = hello.run_id();
  wire::HelloOk ok = helloOkOf(number_);
  const Arrived arrived = arrivedFromWire(hello.arrived());
  co_await edge_->accept(connection_, arrived, std::move(ok));
  logAbout(identity_, edgeRun_)->debug("{}: a direct link of the run {}", name(), edgeRun_);
}

asio::awaitable<void> Session::refuse(std::string answer) {
  try {
    co_await connection_->writeHandshakeFrame(FrameKind::refused, std::move(answer));
  } catch (const Error&) {
    // The client has already disconnected; the refusal is in the log.
  }
}

// Returns whether the run can continue over another connection.
asio::awaitable<bool> Session::serveRun() {
  ServedRun& run = seat_->run();
  try {
    const std::string reason = co_await seat_->serve();
    co_await run.finishWork();
    run.log(spdlog::level::info,
            fmt::format("session {}: the client ended it ({})", number_, reason));
    if (reason == "done") {
      run.finish(*seat_);
    } else {
      reason_ = reason;
    }
  } catch (const std::exception& error) {
    reason_ = error.what();
    if (seat_->session() != number_) co_return false;
    run.log(spdlog::level::warn,
            fmt::format("session {}: ended: {}", number_, printable(error.what())));
    context_.refusals.count(error);
    const auto* known = dynamic_cast<const Error*>(&error);
    co_return known != nullptr && known->kind() == ErrorKind::link;
  }
  co_return false;
}

asio::awaitable<void> Session::serveEdge() {
  try {
    co_await edge_->serve(connection_);
  } catch (const std::exception& error) {
    logAbout(identity_, edgeRun_)
        ->warn("{}: the direct link of the run {} ended: {}", name(), edgeRun_,
               printable(error.what()));
    context_.refusals.count(error);
  }
}

// Parks the seat or closes its run, unless a newer connection has taken the seat over.
asio::awaitable<void> Session::leaveSeat(bool mayPark) {
  std::shared_ptr<Seat> seat = std::move(seat_);
  if (!seat || seat->session() != number_) co_return;
  ServedRun& run = seat->run();
  if (mayPark && !seat->hasEnded() && run.mayPark()) {
    run.log(spdlog::level::info,
            fmt::format("session {}: the run is kept for {} s, so that its client can continue it",
                        number_, run.patience().time / std::chrono::seconds(1)));
    seat->park();
  } else {
    co_await context_.runs.close(std::move(seat), printable(reason_));
  }
}

// ---- Ending ----

void Session::shutDown() {
  if (!helloCame_) return connection_->abandon();
  end(RunError(ErrorKind::attempt, "shutting-down", "the server is shutting down",
               "restart the server"));
}

void Session::drain() {
  if (seat_) {
    seat_->run().drain();
  } else if (!edge_) {  // an edge ends with its run
    shutDown();
  }
}

void Session::end(const Error& error) {
  ended_ = std::make_exception_ptr(RunError(error, error.what(), error.hint()));
  connection_->fail(ended_);
}

void Session::endIfIdle(SteadyTime time) {
  SteadyTime last = connection_->lastActivity();
  if (seat_) last = std::max(last, seat_->run().edgeActivity().value_or(last));
  const double idle = idle_.look(time, last, waitsForServer());
  if (!wasAdmitted() || idle < maxIdleSeconds_) return;
  connection_->fail(std::make_exception_ptr(
      ProtocolError("session-idle",
                    fmt::format("the client has been idle for {} s (limits.idle_seconds in the "
                                "server's configuration, or idle_seconds in its access file)",
                                std::lround(maxIdleSeconds_)),
                    "rerun the command; if the client computes for that long between two messages, "
                    "ask the server's operator for a higher limit")));
}

bool Session::waitsForServer() const {
  if (connection_->outbox().hasTensors()) return true;
  if (probe_) return false;
  if (edge_) return true;                   // it ends with its run
  return !seat_ || seat_->run().hasWork();  // without a seat, the Hello is not answered yet
}

void Session::endIfNoLongerAllowed() {
  if (!wasAdmitted()) return;  // the session will be checked after its Hello
  try {
    if (const auto& tls = context_.certificates.tls()) connection_->checkPeerAgain(*tls);
    context_.access.of(identity_);
  } catch (const Error& error) {
    context_.refusals.note(name(), error, connection_->identity());
    end(error);
  }
}

std::optional<SessionStatus> Session::status() const {
  if (!seat_ && !probe_ && !edge_) return std::nullopt;
  SessionStatus status = seat_ ? seat_->status() : SessionStatus();
  status.number = number_;
  status.identity = identity_;
  status.peer = connection_->peer();
  status.seconds = secondsSince(start_);
  status.kind = kind_;
  if (edge_) status.run = edgeRun_;
  return status;
}

}  // namespace cleave
