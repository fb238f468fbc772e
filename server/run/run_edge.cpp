#include "server/run/run_edge.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cassert>
#include <span>
#include <utility>

#include "common/core/log.h"
#include "common/core/printable.h"
#include "common/files/environment.h"
#include "common/link/edge.h"
#include "common/link/wire_messages.h"
#include "common/net/connection_messages.h"
#include "common/net/streams/connect_to.h"
#include "common/net/streams/listen.h"
#include "common/net/streams/same_secret.h"
#include "common/net/streams/tls_peer.h"

namespace cleave {
namespace {

namespace asio = boost::asio;

constexpr std::chrono::milliseconds kFirstEdgePause{50};  // doubled after each failure
constexpr std::chrono::milliseconds kLongestEdgePause{2000};
// How long to try to connect the first time. The client has already connected to both servers.
constexpr std::chrono::milliseconds kFirstPatience{10'000};
// A connection that lasted for this long has worked, although no tensor may have needed it.
constexpr std::chrono::minutes kLongEnough{1};

// Whether a retry may succeed: the other server is unreachable, or does not have the run yet.
bool mayPass(const Error& error) {
  return error.retrySeconds() > 0 || error.kind() == ErrorKind::link;
}

EdgeReport::OfFlow meanOf(const LinkTotals& after, const LinkTotals& before, FlowKind kind) {
  EdgeReport::OfFlow mean;
  double tensors = 0;
  for (const auto& [flow, sum] : after.flows) {
    if (flow.kind != kind) continue;
    const LinkTotals::FlowTotals earlier = before.flows.get(flow);
    mean.bytes += static_cast<double>(sum.wireBytes - earlier.wireBytes);
    mean.encodeSeconds += sum.encodeSeconds - earlier.encodeSeconds;
    mean.decodeSeconds += sum.decodeSeconds - earlier.decodeSeconds;
    // All tensors of a cut count as one.
    if (flow.tensor == 0) tensors = static_cast<double>(sum.tensors - earlier.tensors);
  }
  if (tensors == 0) return {};
  return {mean.bytes / tensors, mean.encodeSeconds / tensors, mean.decodeSeconds / tensors};
}

}  // namespace

void RunEdge::start(TensorLinkOptions options, std::shared_ptr<BufferPool> pool,
                    std::function<void(Message)> deliver,
                    std::function<void(const TransferRecord&)> record) {
  assert(!link_);
  link_ =
      std::make_shared<TensorLink>(std::move(options), std::move(pool), io_,
                                   TensorLink::Callbacks{
                                       .deliver = std::move(deliver),
                                       .record = std::move(record),
                                       .failed =
                                           [weak = weak_from_this()](std::exception_ptr error) {
                                             const auto edge = weak.lock();
                                             if (!edge) return;
                                             try {
                                               std::rethrow_exception(asError(std::move(error)));
                                             } catch (const Error& known) {
                                               edge->fail(known);
                                             }
                                           },
                                   });
}

void RunEdge::send(TensorMessage message) {
  const bool isFirst = !isNeeded_.exchange(true);
  if (isFirst && options_.target) {
    asio::post(io_, [self = shared_from_this()] { self->startConnecting(); });
  }
  link_->send(std::move(message));
}

EdgeReport RunEdge::report() {
  const LinkTotals totals = link_->totals();
  EdgeReport report;
  const double sent = link_->sendRate(), received = link_->receiveRate();
  report.rate = sent == 0 || received == 0 ? std::max(sent, received) : std::min(sent, received);
  report.roundTripSeconds = link_->clock().roundTripSeconds;
  report.activation = meanOf(totals, reported_, FlowKind::activation);
  report.gradient = meanOf(totals, reported_, FlowKind::gradient);
  reported_ = totals;
  return report;
}

// ---- Connections ----

bool RunEdge::hasToken(const std::string& token) const {
  return isSameSecret(token, options_.token);
}

asio::awaitable<void> RunEdge::accept(std::shared_ptr<Connection> connection, const Arrived& peer,
                                      wire::HelloOk ok) {
  const auto self = shared_from_this();
  const auto counted = countServing();
  toWire(attach(connection, peer), *ok.mutable_arrived());
  std::string metadata = ok.SerializeAsString();
  try {
    co_await connection->writeHandshakeFrame(FrameKind::helloOk, std::move(metadata));
  } catch (const Error&) {
    connection->abandon();  // serve() reports it, or an error that the link has found meanwhile
  }
}

Arrived RunEdge::attach(std::shared_ptr<Connection> connection, const Arrived& peer) {
  detach();
  const Arrived arrived = link_->arrived();
  peer_ = connection->peer();
  wasConnected_ = true;
  try {
    link_->attach(connection, peer);
  } catch (const Error&) {
    link_->detach();
    throw;
  }
  connection->ping();  // its Pong measures the round trip
  return arrived;
}

// Closes the connection immediately: its socket must not write into a tensor that the next
// connection continues.
void RunEdge::detach() {
  const auto connection = link_->connection();
  if (!connection) return;
  connection->abandon();
  link_->detach();
}

asio::awaitable<void> RunEdge::serve(std::shared_ptr<Connection> connection) {
  const auto self = shared_from_this();
  const auto counted = countServing();
  co_await serveOnce(std::move(connection));
}

asio::awaitable<void> RunEdge::serveOnce(std::shared_ptr<Connection> connection) {
  if (link_->connection() != connection) co_return;  // already replaced
  try {
    co_await link_->serve();
  } catch (const Error& error) {
    // The client learns from the other server of errors that were found there. Errors of this side
    // count even if the connection has been replaced, because the next one does not repeat them.
    if (connection->hasFoundFault() && error.kind() != ErrorKind::link) fail(error);
    if (link_->connection() != connection) co_return;  // replaced
    link_->detach();
    throw;
  }
  if (link_->connection() != connection) co_return;
  link_->detach();
  isClosed_ = true;  // the other server has closed its run
}

// Counts a coroutine that uses the link, until the result is destroyed.
std::shared_ptr<void> RunEdge::countServing() {
  ++serving_;
  return {this, [](RunEdge* edge) {
            assert(edge->serving_ > 0);
            if (--edge->serving_ == 0) edge->held_.reset();
          }};
}

void RunEdge::startConnecting() {
  if (isClosed_) return;
  waitingSince_ = now();
  asio::co_spawn(io_, keepConnected(),
                 asio::bind_cancellation_slot(
                     stop_.slot(),
                     [self = shared_from_this(), counted = countServing()](std::exception_ptr bug) {
                       if (bug) std::rethrow_exception(bug);
                     }));
}

// Connects to the other server, again whenever the connection breaks, until close().
asio::awaitable<void> RunEdge::keepConnected() {
  auto pause = kFirstEdgePause;
  std::string reported;
  while (failed_ && !isClosed_) {
    std::optional<RunError> problem;
    bool wasServed = false;
    const SteadyTime start = now();
    const std::uint64_t crossed = tensorsCrossed();
    try {
      auto connection = co_await connect();
      if (isClosed_) co_return detach();
      processLog()->debug("direct link to {}: connected", peerName());
      wasServed = true;
      co_await serveOnce(std::move(connection));
    } catch (const Error& error) {
      problem.emplace(error, error.what(), error.hint());
    } catch (const boost::system::system_error& error) {
      problem.emplace(ErrorKind::link, "no-server",
                      fmt::format("cannot connect to {}: {}", peerName(), error.code().message()),
                      "check that this server can reach that address, and any firewall between "
                      "them; or set connect.direct to false");
    }
    if (isClosed_ || !failed_) co_return detach();
    if (tensorsCrossed() > crossed || (wasServed && now() - start > kLongEnough)) {
      waitingSince_ = now();
      pause = kFirstEdgePause;
      reported.clear();
    }
    if (!problem) continue;  // a newer connection replaced it
    if ((!wasServed && !mayPass(*problem)) || isOverdue()) co_return fail(*problem);
    // A server that does not have the run yet is no news. Other refusals that may pass are: the
    // literal tells them apart.
    if (problem->code() != reported && problem->code() != "edge-not-here") {
      processLog()->warn("direct link to {}: {}; trying again", peerName(),
                         printable(problem->what()));
      reported = problem->code();
    }
    asio::steady_timer timer(io_, pause);
    pause = std::min(2 * pause, kLongestEdgePause);
    boost::system::error_code closed;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, closed));
  }
}

// Tensors that were acknowledged or received.
std::uint64_t RunEdge::tensorsCrossed() const {
  std::uint64_t tensors = 0;
  for (const auto& [flow, sum] : link_->totals().flows) tensors += sum.tensors;
  return tensors;
}

// Whether it has taken too long to connect, or to send anything over the connections.
bool RunEdge::isOverdue() const {
  return now() - waitingSince_ > (wasConnected_ ? options_.patience : kFirstPatience);
}

// Returns a connection that was attached.
asio::awaitable<std::shared_ptr<Connection>> RunEdge::connect() {
  const Endpoint& address = options_.target->address;
  if (options_.certificates->tls() && !options_.certificates->ofEdges()) {
    throw UsageError("no-certificates", "this server has no certificate for direct links",
                     "set edges.folder in its configuration");
  }
  auto socket = co_await connectTo(address);
  ConnectionOptions options = options_.connection;
  options.tls = options_.certificates->ofEdges();
  options.serverName = address.host;
  const auto connection = std::make_shared<Connection>(std::move(socket), std::move(options));
  wire::Hello hello;
  hello.set_kind(wire::Hello::EDGE);
  hello.set_software(softwareVersion());
  hello.set_run_id(options_.target->runId);
  hello.set_edge_token(options_.token);
  toWire(link_->arrived(), *hello.mutable_arrived());
  connecting_ = connection;
  std::string metadata = hello.SerializeAsString();
  co_await connection->writeHandshakeFrame(FrameKind::hello, std::move(metadata));
  const auto answer = co_await connection->readHandshakeFrame(ConnectionState::awaitingHelloOk);
  const auto metadataOfAnswer =
      std::as_bytes(std::span(answer.metadata.data(), answer.metadata.size()));
  if (answer.kind != FrameKind::helloOk) throw errorFromFailure(metadataOfAnswer);
  const auto ok = parseMetadata<wire::HelloOk>(FrameKind::helloOk, metadataOfAnswer);
  attach(connection, arrivedFromWire(ok.arrived()));
  co_return connection;
}

// Faults of a connection get a code of their own: their codes would tell the client that its own
// connection broke. Hints about certificates speak of "the client".
void RunEdge::fail(const Error& error) {
  if (!failed_) return;
  const bool isOfCertificate = error.key() == kCertificatesKey;
  const std::string before =
      isOfCertificate
          ? "in a direct link, the client is the first of the two servers, and its folder is "
            "edges.folder; "
          : "";
  const std::string sentence = fmt::format("the direct link to {}: {}", peerName(), error.what());
  const std::string hint = before + error.hint();
  const bool isLink = error.kind() == ErrorKind::link;
  const auto fail = std::exchange(failed_, nullptr);
  fail(isLink ? RunError(ErrorKind::attempt, "edge-failed", sentence, hint).about("connect.direct")
              : RunError(error, sentence, hint)
                    .about(isOfCertificate ? "connect.direct" : error.key()));
}

std::string RunEdge::peerName() const {
  if (options_.target) return options_.target->address.text();
  return peer_.empty() ? "the server before this one" : peer_;
}

void RunEdge::close(std::shared_ptr<const void> held) {
  if (serving_ > 0) held_ = std::move(held);
  isClosed_ = true;
  failed_ = nullptr;
  if (const auto connection = link_->connection()) return connection->sayBye("done");
  if (const auto opening = connecting_.lock()) return opening->abandon();
  stop_.emit(asio::cancellation_type::terminal);
}

std::optional<SteadyTime> RunEdge::lastActivity() const {
  const auto connection = link_->connection();
  return connection ? std::optional(connection->lastActivity()) : std::nullopt;
}

}  // namespace cleave
