#include "tools/link/relay.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include "common/core/error.h"
#include "common/core/log.h"
#include "common/net/streams/accept.h"
#include "common/net/streams/listen.h"
#include "common/net/streams/tcp.h"

namespace cleave::link {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::size_t kUnsentBytes = std::size_t{64} << 10;
// Rounds of reads and writes before other handlers get a turn.
constexpr int kMaxRounds = 8;

// Size of a socket's kernel buffers: that of its queue, but at least 64 KiB and at most a segment.
// By default, the kernel would accept megabytes from a sender before the shaper counts them.
int kernelBytes(const Profile& profile) {
  const std::size_t queue = profile.queue == 0 ? segmentBytes(profile.rate) : profile.queue;
  return static_cast<int>(
      std::clamp(queue, std::size_t{64} << 10, segmentBytes(std::max(profile.rate, 0.0))));
}

}  // namespace

Relay::Relay(asio::io_context& context, const Settings& settings)
    : context_(context),
      settings_(settings),
      acceptor_(context),
      up_(settings.up, settings.seed, "up"),
      down_(settings.down, settings.seed, "down"),
      script_(settings.events),
      timer_(context),
      linkUp_(context) {
  error_code error;
  const Endpoint& target = settings_.target;
  targets_ = tcp::resolver(context).resolve(target.host, std::to_string(target.port), error);
  if (error) {
    throw UsageError("unknown-host",
                     "the target " + target.host + " cannot be resolved: " + error.message(),
                     "correct its name in --target, or give its address");
  }
  acceptor_.open(settings_.listen.protocol(), error);
  // The buffer size is set on the listening socket, because accepted connections inherit it before
  // they negotiate window scaling.
  if (!error) {
    acceptor_.set_option(asio::socket_base::receive_buffer_size(kernelBytes(settings_.up)), error);
  }
  listenOn(acceptor_, settings_.listen,
           {"--listen", "--listen " + hostText(settings_.listen.address()) + ":"});

  const Time roundTrip = settings_.up.latency + settings_.down.latency;
  up_.setRoundTrip(roundTrip);
  down_.setRoundTrip(roundTrip);
  // Exceptions from the coroutine are bugs: they must end the process instead of being lost.
  asio::co_spawn(context_,
                 acceptAll<tcp>(
                     acceptor_, [this](tcp::socket socket) { admit(std::move(socket)); },
                     [](const error_code& failed) {
                       processLog()->warn("cannot accept a connection: {}", failed.message());
                     }),
                 [](std::exception_ptr bug) {
                   if (bug) std::rethrow_exception(bug);
                 });
}

std::string Relay::address() const { return textOf(acceptor_.local_endpoint()); }

void Relay::stop() {
  stopped_ = true;
  error_code ignored;
  acceptor_.close(ignored);
  for (const auto& connection : std::exchange(connections_, {})) connection->reset();
  timer_.cancel();
  linkUp_.cancel();
}

// ---- Connections ----

void Relay::admit(tcp::socket socket) {
  const std::uint64_t number = ++accepted_;
  error_code gone;  // the first read will fail
  const std::string peer = textOf(socket.remote_endpoint(gone));
  socket.set_option(asio::socket_base::send_buffer_size(kernelBytes(settings_.down)), gone);
  limitUnsent(socket.native_handle(), kUnsentBytes);
  if (!scriptBegin_) scriptBegin_ = now();
  auto connection =
      std::make_shared<Connection>(std::move(socket), number, up_, down_, [this] { wakeSoon(); });
  if (connections_.size() == kMaxConnections) {
    processLog()->warn("connection {} from {} is reset: {} are already open", number, peer,
                       kMaxConnections);
    return connection->reset();
  }
  processLog()->info("connection {} from {}", number, peer);
  connections_.push_back(connection);
  runScript(now());  // events that are due now also apply to this connection
  asio::co_spawn(context_, connect(connection, number), [](std::exception_ptr bug) {
    if (bug) std::rethrow_exception(bug);
  });
  wakeSoon();
}

asio::awaitable<void> Relay::connect(std::shared_ptr<Connection> connection, std::uint64_t number) {
  while (up_.isDown() && !stopped_) {
    linkUp_.expires_at(asio::steady_timer::time_point::max());
    error_code cancelled;
    co_await linkUp_.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
  }
  tcp::socket socket(context_);
  const error_code error = co_await connectTo(socket);
  if (stopped_ || connection->isClosed()) co_return;
  if (error) {
    processLog()->warn("connection {} is reset: the target {} cannot be reached: {}", number,
                       settings_.target.text(), error.message());
    connection->reset();
  } else {
    connection->start(std::move(socket));
  }
  wakeSoon();
}

// Connects to the first of the target's addresses that answers.
asio::awaitable<error_code> Relay::connectTo(tcp::socket& socket) {
  error_code error;
  for (const auto& target : targets_) {
    socket.close(error);
    socket.open(target.endpoint().protocol(), error);
    if (error) continue;
    error_code ignored;
    socket.set_option(asio::socket_base::receive_buffer_size(kernelBytes(settings_.down)), ignored);
    socket.set_option(asio::socket_base::send_buffer_size(kernelBytes(settings_.up)), ignored);
    limitUnsent(socket.native_handle(), kUnsentBytes);
    co_await socket.async_connect(target.endpoint(),
                                  asio::redirect_error(asio::use_awaitable, error));
    if (!error) co_return error;
  }
  co_return error;
}

// ---- Moving bytes ----

void Relay::wakeSoon() {
  if (stopped_ || std::exchange(pumpPosted_, true)) return;
  asio::post(context_, [this] {
    pumpPosted_ = false;
    pump();
  });
}

void Relay::pump() {
  if (stopped_) return;
  bool more = true;
  for (int round = 0; more && round < kMaxRounds; ++round) {
    const Time time = now();
    runScript(time);
    more = false;
    for (const auto& connection : connections_) more = connection->move(time) || more;
    connections_.remove_if([](const auto& connection) { return connection->isClosed(); });
  }
  if (more) wakeSoon();
  setTimer(now());
}

void Relay::setTimer(Time now) {
  std::optional<Time> wake = up_.nextWake();
  const auto atLatest = [&](std::optional<Time> time) {
    if (time) wake = std::min(wake.value_or(Time::max()), *time);
  };
  atLatest(down_.nextWake());
  if (scriptBegin_ && script_.next()) atLatest(*scriptBegin_ + *script_.next());
  if (!wake) return;
  if (*wake <= now) return wakeSoon();
  timer_.expires_at(begin_ + *wake);
  timer_.async_wait([this](const error_code& cancelled) {
    if (!cancelled) pump();
  });
}

// ---- Events ----

void Relay::runScript(Time now) {
  while (scriptBegin_) {
    const auto event = script_.take(now - *scriptBegin_);
    if (!event) return;
    happen(*event, now);
  }
}

void Relay::happen(const Event& event, Time now) {
  if (event.text.empty()) {
    processLog()->info("event: a blackhole ended");
  } else {
    processLog()->info("event: {}", event.text);
  }
  if (event.kind == Event::Kind::reset) {
    for (const auto& connection : connections_) connection->reset();
    return;
  }
  if (event.kind == Event::Kind::halfOpen) {
    for (const auto& connection : connections_) connection->kill(event.up);
    return;
  }
  if (event.up) changeShaper(up_, downsUp_, event, now);
  if (event.down) changeShaper(down_, downsDown_, event, now);
  const Time roundTrip = up_.profile().latency + down_.profile().latency;
  up_.setRoundTrip(roundTrip);
  down_.setRoundTrip(roundTrip);
  if (!up_.isDown()) linkUp_.cancel();
}

void Relay::changeShaper(Shaper& shaper, int& downs, const Event& event, Time now) {
  switch (event.kind) {
    case Event::Kind::rate:
      return shaper.setRate(event.rate, now);
    case Event::Kind::latency:
      return shaper.setLatency(event.latency, now);
    case Event::Kind::linkDown:
      return shaper.setDown(++downs > 0, now);
    case Event::Kind::linkUp:
      return shaper.setDown(--downs > 0, now);
    case Event::Kind::halfOpen:
    case Event::Kind::reset:
      return;
  }
}

}  // namespace cleave::link
