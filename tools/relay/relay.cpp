#include "tools/relay/relay.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <optional>
#include <utility>

#include "common/core/log.h"
#include "common/net/streams/accept.h"
#include "common/net/streams/listen.h"
#include "common/net/streams/tcp.h"

namespace cleave::relay {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::milliseconds kBetweenLooks{200};
constexpr std::chrono::seconds kBetweenRefusals{1};  // in the log
// Connections of servers that have not sent their request; the oldest makes room for the next.
constexpr std::size_t kMaxUnchecked = 256;
constexpr std::size_t kMaxEvents = 8;  // in addition to one per pending client

// Exceptions from these coroutines are bugs: they must end the process instead of being lost.
void rethrow(std::exception_ptr bug) {
  if (bug) std::rethrow_exception(bug);
}

std::string peerOf(const tcp::socket& socket) {
  error_code gone;
  const auto peer = socket.remote_endpoint(gone);
  return gone ? "a peer that has left" : textOf(peer);
}

}  // namespace

Relay::Relay(asio::io_context& context, const Settings& settings)
    : context_(context),
      settings_(settings),
      clients_(context),
      servers_(context),
      lookTimer_(context) {
  listenOn(clients_, settings_.clients,
           {"--listen", "--listen " + hostText(settings_.clients.address()) + ":"});
  listenOn(servers_, settings_.server,
           {"--register", "--register " + hostText(settings_.server.address()) + ":"});
  const auto failed = [](const error_code& error) {
    processLog()->warn("cannot accept a connection: {}", error.message());
  };
  const auto admitsClient = [this](tcp::socket socket) {
    admitClient(std::make_shared<tcp::socket>(std::move(socket)));
  };
  const auto admitsServer = [this](tcp::socket socket) {
    admitServer(std::make_shared<tcp::socket>(std::move(socket)));
  };
  asio::co_spawn(context_, acceptAll<tcp>(clients_, admitsClient, failed), rethrow);
  asio::co_spawn(context_, acceptAll<tcp>(servers_, admitsServer, failed), rethrow);
  asio::co_spawn(context_, look(), rethrow);
}

void Relay::stop() {
  stopped_ = true;
  error_code ignored;
  clients_.close(ignored);
  servers_.close(ignored);
  lookTimer_.cancel();
  for (const auto& socket : unchecked_) closeWithReset(*socket);
  for (const auto& [number, client] : std::exchange(pending_, {})) closeWithReset(*client.socket);
  for (const auto& pair : pairs_) {
    closeWithReset(*pair->client);
    closeWithReset(*pair->server);
  }
  if (registration_) {
    registration_->events.close();
    registration_->socket->close(ignored);
  }
}

// ---- Connections ----

void Relay::admitClient(SharedSocket client) {
  error_code gone;
  const auto peer = client->remote_endpoint(gone);
  if (gone) return;
  if (pending_.size() >= settings_.maxPending) {
    return refuse(client, "too many clients wait for the server (--pending)");
  }
  if (pending_.size() + pairs_.size() >= settings_.maxConnections) {
    return refuse(client, "too many clients are connected (--connections)");
  }
  const std::uint64_t number = ++accepted_;
  pending_.emplace(number, Pending{std::move(client), peer.address(), now()});
  announce(number);
}

void Relay::admitServer(SharedSocket socket) {
  if (unchecked_.size() >= kMaxUnchecked) {
    refuse(unchecked_.front(), "it has sent no request, and others are waiting");
    unchecked_.pop_front();
  }
  unchecked_.push_back(socket);
  asio::co_spawn(context_, check(std::move(socket)), rethrow);
}

// Handles a connection to the address of --register. A fault of the peer ends only this connection.
asio::awaitable<void> Relay::check(SharedSocket socket) {
  try {
    co_await serveRequest(socket);
  } catch (const boost::system::system_error&) {
    closeWithReset(*socket);  // the network has failed, or the request was late
  }
  unchecked_.remove(socket);
}

asio::awaitable<void> Relay::serveRequest(SharedSocket socket) {
  sendWithoutDelay(socket->native_handle());
  RelayServerCheck server(socket, settings_.secret);
  std::optional<asio::steady_timer> deadline(closeAfter(kRelayHandshakeTime, socket));
  const auto request = co_await server.readRequest();
  unchecked_.remove(socket);
  if (!request) {
    co_await server.answer(RelayVerdict::wrongSecret);
    co_return refuse(socket, "it does not have the secret");
  }
  if (!request->hasTls && !settings_.clients.address().is_loopback()) {
    co_await server.answer(RelayVerdict::needsTls);
    co_return refuse(
        socket, "this relay accepts clients from a network, and the server does not require TLS");
  }
  if (request->purpose == RelayPurpose::control) {
    co_await server.answer(RelayVerdict::accepted);
    deadline.reset();
    co_return co_await control(socket);
  }
  const auto client = pending_.extract(request->client);
  co_await server.answer(client ? RelayVerdict::accepted : RelayVerdict::noClient);
  deadline.reset();
  if (client) co_await pair(client.mapped().socket, socket, request->client);
}

asio::awaitable<void> Relay::pair(SharedSocket client, SharedSocket server, std::uint64_t number) {
  const std::string peer = peerOf(*client);
  processLog()->debug("client {} from {} is connected", number, peer);
  const auto pair = std::make_shared<Pair>(Pair{.client = client, .server = server});
  pairs_.insert(pair);
  co_await forward(pair);
  pairs_.erase(pair);
  bytesUp_ += pair->up;
  bytesDown_ += pair->down;
  processLog()->debug("client {} from {} has ended: {} up, {} down", number, peer,
                      bytesText(static_cast<double>(pair->up)),
                      bytesText(static_cast<double>(pair->down)));
}

// Not a reset, because that would discard a verdict that is still in the kernel.
void Relay::refuse(const SharedSocket& socket, const std::string& why) {
  ++refused_;
  const std::string peer = peerOf(*socket);
  error_code ignored;
  socket->close(ignored);
  if (now() - refusalLoggedAt_ < kBetweenRefusals) return;
  refusalLoggedAt_ = now();
  processLog()->warn("refused a connection from {}: {} ({} refused so far)", peer, why, refused_);
}

// ---- The server ----

// The newest registration counts: a server whose old connection has died silently must not wait.
asio::awaitable<void> Relay::control(SharedSocket socket) {
  const auto registration = std::make_shared<Registration>(
      Registration{.socket = socket,
                   .events = Events(context_, settings_.maxPending + kMaxEvents),
                   .name = peerOf(*socket)});
  if (const auto old = std::exchange(registration_, registration)) {
    processLog()->warn("the server at {} replaces the one at {}", registration->name, old->name);
    old->events.try_send(error_code(), RelayEvent{.kind = RelayEvent::Kind::replaced});
    old->events.close();
  } else {
    processLog()->info("the server at {} has registered", registration->name);
  }
  for (const auto& [number, client] : pending_) announce(number);
  asio::co_spawn(context_, sendEvents(registration), rethrow);
  co_await readPongs(registration);
  registration->events.close();
  if (registration_ != registration) co_return;
  registration_ = nullptr;
  if (!stopped_) processLog()->warn("the server at {} has left", registration->name);
}

asio::awaitable<void> Relay::sendEvents(std::shared_ptr<Registration> registration) {
  try {
    while (true) {
      const RelayEvent event = co_await registration->events.async_receive(asio::use_awaitable);
      co_await sendRelayEvent(*registration->socket, event);
    }
  } catch (const boost::system::system_error&) {
    error_code ignored;  // the server has left, or another has replaced it
    registration->socket->close(ignored);
  }
}

asio::awaitable<void> Relay::readPongs(std::shared_ptr<Registration> registration) {
  try {
    while (true) {
      co_await readRelayPong(*registration->socket);
      registration->lastPong = now();
    }
  } catch (const boost::system::system_error&) {
  }
}

// If there is no server, the client waits for one to register.
void Relay::announce(std::uint64_t number) {
  if (!registration_) return;
  const RelayEvent event{
      .kind = RelayEvent::Kind::client, .client = number, .address = pending_.at(number).address};
  // The channel has room for all pending clients. It is full only if the server reads nothing.
  registration_->events.try_send(error_code(), event);
}

// ---- Deadlines ----

asio::awaitable<void> Relay::look() {
  while (!stopped_) {
    const SteadyTime time = now();
    endOverdue(time);
    pingServer(time);
    lookTimer_.expires_after(kBetweenLooks);
    co_await lookTimer_.async_wait(asio::as_tuple(asio::use_awaitable));
  }
}

void Relay::endOverdue(SteadyTime time) {
  std::erase_if(pending_, [&](const auto& entry) {
    const Pending& client = entry.second;
    if (time - client.since < settings_.pendingTime) return false;
    refuse(client.socket, registration_ ? "the server has opened no connection for it"
                                        : "no server has registered");
    return true;
  });
  for (const auto& pair : pairs_) {
    if (time - pair->lastByte < settings_.idleTime) continue;
    closeWithReset(*pair->client);
    closeWithReset(*pair->server);
  }
}

void Relay::pingServer(SteadyTime time) {
  if (!registration_ || time < pingAt_) return;
  pingAt_ = time + kRelayPingEvery;
  error_code ignored;
  if (time - registration_->lastPong > kRelaySilence) {
    registration_->socket->close(ignored);
  } else {
    registration_->events.try_send(error_code(), RelayEvent{});
  }
}

}  // namespace cleave::relay
