// How a server behind NAT and cleave-relay (tools/relay) find and authenticate each other. The
// server opens all connections: one to control, and one for each client. io thread.
//
//   relay                                        server
//     <────────── TCP connection ──────────
//     ── challenge: magic, nonce ─────────>
//     <── request: purpose, nonce, MAC ────      MAC: HMAC-SHA256 with the shared secret
//     ── verdict, MAC ────────────────────>
//   A control connection then carries events (Ping; client N has connected from this address) to
//   the server, and one byte for each Ping back. A client's connection carries the client's bytes.
//
// The MACs cover both nonces, so neither side can be impersonated and no message can be replayed.
// The bytes that follow are not protected by the relay protocol, but by TLS between client and
// server.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace cleave {

using SharedSocket = std::shared_ptr<boost::asio::ip::tcp::socket>;

inline constexpr std::chrono::seconds kRelayHandshakeTime{5};
inline constexpr std::chrono::seconds kRelayPingEvery{5};
// A control connection without a byte for this long is considered lost.
inline constexpr std::chrono::seconds kRelaySilence{15};

// Reads the secret that a relay and its server share, without white space at its ends. Throws
// UsageError "bad-secret" if the secret is shorter than 16 bytes, or the errors of
// readPrivateFile().
std::string readRelaySecret(const std::string& path);

enum class RelayPurpose : std::uint8_t { control = 1, client = 2 };

struct RelayRequest {
  RelayPurpose purpose = RelayPurpose::control;
  bool hasTls = false;       // whether the server requires TLS of its clients
  std::uint64_t client = 0;  // for the purpose `client`: the number in the event
};

enum class RelayVerdict : std::uint8_t {
  accepted = 1,
  wrongSecret = 2,
  needsTls = 3,  // the relay's clients are not on its own machine, and the server has no TLS
  noClient = 4,  // the client has disconnected, or has waited for too long
};

struct RelayEvent {
  enum class Kind : std::uint8_t { ping = 1, client = 2, replaced = 3 };
  Kind kind = Kind::ping;
  std::uint64_t client = 0;
  boost::asio::ip::address address = {};  // of the client
};

// Closes the socket after `time`, unless the returned timer is destroyed first.
[[nodiscard]] boost::asio::steady_timer closeAfter(std::chrono::milliseconds time,
                                                   SharedSocket socket);

// The relay's half. These functions throw boost::system::system_error for faults of the network.
class RelayServerCheck {
 public:
  RelayServerCheck(SharedSocket socket, const std::string& secret);
  // Nullopt if the peer has another secret or speaks another protocol.
  boost::asio::awaitable<std::optional<RelayRequest>> readRequest();
  boost::asio::awaitable<void> answer(RelayVerdict verdict);

 private:
  const SharedSocket socket_;
  const std::string& secret_;
  std::string nonces_;
};
boost::asio::awaitable<void> sendRelayEvent(boost::asio::ip::tcp::socket& socket, RelayEvent event);
boost::asio::awaitable<void> readRelayPong(boost::asio::ip::tcp::socket& socket);

// The server's half. Returns when the relay has accepted the connection. Also throws RunError
// "not-a-relay", "wrong-secret", "relay-needs-tls", "no-client".
boost::asio::awaitable<void> joinRelay(SharedSocket socket, const std::string& secret,
                                       RelayRequest request);
// Throws RunError "not-a-relay" for an unknown kind.
boost::asio::awaitable<RelayEvent> readRelayEvent(boost::asio::ip::tcp::socket& socket);
boost::asio::awaitable<void> sendRelayPong(boost::asio::ip::tcp::socket& socket);

}  // namespace cleave
