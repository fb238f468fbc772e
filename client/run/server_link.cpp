#include "client/run/server_link.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <cmath>
#include <exception>
#include <optional>
#include <span>
#include <utility>

#include "common/core/log.h"
#include "common/link/wire_messages.h"

namespace cleave {

namespace asio = boost::asio;

namespace {

// Before reconnecting again, if the last connection brought no progress; grows with each one.
constexpr std::chrono::milliseconds kReconnectPause{250};
constexpr std::chrono::milliseconds kLongestReconnectPause{4000};

}  // namespace

RunError endedByServer(const std::string& reason) {
  const char* hint = "restart the server";
  if (reason != "shutting-down") {
    return RunError("server-left", "the server ended the run (" + reason + ")", hint);
  }
  return RunError(ErrorKind::attempt, "shutting-down",
                  "the server is shutting down, after finishing the current step", hint);
}

ServerLink::ServerLink(IoThread& io, ServerRequest request, const ConnectOptions& options,
                       std::shared_ptr<ProgressCount> progress)
    : io_(io),
      address_(std::move(request.address)),
      number_(request.number),
      options_(options),
      progress_(std::move(progress)),
      hello_(std::move(request.hello)) {}

void ServerLink::connect(std::function<void(std::exception_ptr error)> done) {
  const auto firstHello = [this] { return numberedHello(); };
  const auto connectIt = options_.isRestart ? reconnectToServer : connectToServer;
  asio::co_spawn(io_.context(), connectIt(address_, firstHello, options_.retrySeconds),
                 [this, done = std::move(done)](std::exception_ptr failed, OpenConnection opened) {
                   try {
                     if (!failed) accept(std::move(opened));
                   } catch (...) {
                     failed = std::current_exception();
                   }
                   done(std::move(failed));
                 });
}

// The Hello with a new id and generation.
const wire::Hello& ServerLink::numberedHello() {
  if (options_.nextHello) {
    connections_ = options_.nextHello(number_);
  } else {
    addHello(connections_, number_);
  }
  const std::vector<std::uint64_t> ids = connections_.servers.at(number_).all();
  hello_.set_generation(connections_.generation);
  hello_.mutable_connections()->Assign(ids.begin(), ids.end());
  return hello_;
}

void ServerLink::wasAccepted() {
  acceptHello(connections_, number_);
  if (options_.accepted) options_.accepted(number_);
}

void ServerLink::accept(OpenConnection open) {
  connection_ = std::move(open.connection);
  ok_ = std::move(open.ok);
  wasAccepted();
  hello_.set_token(ok_.token());
  hello_.clear_committed();
  hello_.clear_weights_sha256();
  hello_.clear_take_over();
}

namespace {

// Accepts no frames: before a run starts, the server sends only the connection's own control
// frames.
class NoFrames : public FrameSink {
  std::span<std::byte> placePayload(const FrameHeader&, std::span<const std::byte>) override {
    throw ProtocolError("unexpected-message", "a frame arrived before the run started");
  }
  void receivedFrame(const FrameHeader&, std::span<const std::byte>,
                     std::span<const std::byte>) override {}
};

}  // namespace

asio::awaitable<void> ServerLink::sayByeTo(std::shared_ptr<Connection> connection) {
  NoFrames frames;
  connection->sayBye("failed");
  co_await connection->run(frames);
}

void ServerLink::leave(std::function<void()> done) {
  asio::post(io_.context(), [this, done = std::move(done)]() mutable {
    if (!connection_) return done();
    // An error ends the connection too.
    asio::co_spawn(io_.context(), sayByeTo(std::move(connection_)),
                   [done = std::move(done)](const std::exception_ptr&) { done(); });
  });
}

void ServerLink::start(TensorLinkOptions options, std::shared_ptr<BufferPool> pool,
                       Callbacks callbacks) {
  callbacks_ = std::move(callbacks);
  options.progress = progress_;
  link_ = std::make_shared<TensorLink>(std::move(options), std::move(pool),
                                       io_.context().get_executor(),
                                       TensorLink::Callbacks{
                                           .deliver = callbacks_.deliver,
                                           .record = callbacks_.record,
                                           .failed =
                                               [this](std::exception_ptr error) {
                                                 isClosing_ = true;
                                                 end(std::move(error));
                                               },
                                       });
  asio::co_spawn(io_.context(), serve(), [this](std::exception_ptr error) {
    link_->recordUnacknowledged();
    end(std::move(error));
  });
}

// Serves the run's connections, one after the other, until the run ends. Throws the error that
// ended the run.
asio::awaitable<void> ServerLink::serve() {
  std::shared_ptr<Connection> connection = std::move(connection_);
  Arrived atServer;
  for (;;) {
    link_->attach(std::move(connection), atServer);
    std::optional<RunError> broken;
    try {
      const std::string reason = co_await link_->serve();
      if (reason != "done") throw endedByServer(reason);
      co_return;
    } catch (const Error& error) {
      if (!mayReconnect(error)) throw;
      broken.emplace(error, error.what(), error.hint());
    }
    link_->detach();
    OpenConnection open = co_await reconnect(*broken);
    if (isClosing_) co_return open.connection->abandon();
    callbacks_.reconnected(open.ok.session(), hello_.generation());
    connection = std::move(open.connection);
    atServer = arrivedFromWire(open.ok.arrived());
  }
}

// A server that has sent no token does not keep the run when its connection breaks.
bool ServerLink::mayReconnect(const Error& error) const {
  return options_.reconnectSeconds > 0 && ok_.token() != 0 && !isClosing_ &&
         error.kind() == ErrorKind::link;
}

// The seconds that remain for reconnecting. A connection that breaks again without any progress
// does not restart the time, and is replaced after a pause. Throws "no-progress" if none remain.
asio::awaitable<double> ServerLink::reconnectSecondsLeft(const Error& broken) {
  if (!brokenSince_) brokenSince_.emplace(now());
  const double without = brokenSince_->secondsWithout(*progress_, now());
  breaks_ = without == 0 ? 1 : breaks_ + 1;
  const double left = options_.reconnectSeconds - without;
  if (left <= 0) {
    throw RunError("no-progress",
                   fmt::format("{}; {} connections to {} broke within {:.0f} s, without a step or "
                               "a byte of progress",
                               broken.what(), breaks_, address_.text(), without),
                   "check the server's log");
  }
  if (breaks_ > 1) {
    asio::steady_timer pause(io_.context(),
                             std::min(kReconnectPause * (breaks_ - 1), kLongestReconnectPause));
    co_await pause.async_wait(asio::use_awaitable);
  }
  co_return left;
}

asio::awaitable<OpenConnection> ServerLink::reconnect(const Error& broken) {
  const double seconds = co_await reconnectSecondsLeft(broken);
  processLog()->warn("{}; reconnecting for up to {:.0f} s", broken.what(), std::ceil(seconds));
  const SteadyTime start = now();
  OpenConnection open = co_await reconnectToServer(
      address_, [this] { return nextHello(); }, seconds);
  wasAccepted();
  processLog()->info("reconnected to {} after {:.1f} s; the run continues", address_.text(),
                     secondsSince(start));
  co_return open;
}

wire::Hello ServerLink::nextHello() {
  toWire(link_->arrived(), *hello_.mutable_arrived());
  return numberedHello();
}

void ServerLink::end(std::exception_ptr error) {
  if (std::exchange(hasEnded_, true)) return;
  callbacks_.ended(std::move(error));
}

void ServerLink::ping() {
  asio::post(io_.context(), [link = link_] {
    if (const auto connection = link->connection()) connection->ping();
  });
}

void ServerLink::sayBye(const std::string& reason) {
  asio::post(io_.context(), [this, reason] {
    isClosing_ = true;
    if (const auto connection = link_->connection()) return connection->sayBye(reason);
    end(nullptr);
  });
}

std::optional<std::size_t> ServerLink::queuedFrames() const {
  return askOn(io_.context().get_executor(), [link = link_]() -> std::size_t {
    const auto connection = link->connection();
    return connection ? connection->outbox().size() : 0;
  });
}

}  // namespace cleave
