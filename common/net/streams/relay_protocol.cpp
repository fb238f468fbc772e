#include "common/net/streams/relay_protocol.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "common/core/durable.h"
#include "common/core/error.h"
#include "common/net/streams/same_secret.h"

namespace cleave {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr std::string_view kRelayMagic = "cleave-relay 1\n";
constexpr std::size_t kNonceBytes = 32;
constexpr std::size_t kMacBytes = 32;
constexpr std::size_t kChallengeBytes = kRelayMagic.size() + kNonceBytes;
constexpr std::size_t kRequestHead = 10;  // purpose, TLS, client
constexpr std::size_t kRequestBytes = kRequestHead + kNonceBytes + kMacBytes;
constexpr std::size_t kVerdictBytes = 1 + kMacBytes;
constexpr std::size_t kEventBytes = 1 + 8 + 16;  // kind, client, address
constexpr std::size_t kMinSecretBytes = 16;
constexpr char kPong = 1;

std::string makeNonce() {
  std::string nonce(kNonceBytes, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), kNonceBytes) != 1) {
    throw std::runtime_error("the system has no random numbers");
  }
  return nonce;
}

// `signer` prevents a message of one side from being sent back as a message of the other side.
std::string macOf(const std::string& secret, std::string_view signer, std::string_view text) {
  const std::string whole =
      std::string(kRelayMagic) + std::string(signer) + "\n" + std::string(text);
  std::string mac(kMacBytes, '\0');
  unsigned size = 0;
  ::HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
         reinterpret_cast<const unsigned char*>(whole.data()), whole.size(),
         reinterpret_cast<unsigned char*>(mac.data()), &size);
  return mac;
}

void appendNumber(std::string& text, std::uint64_t number) {
  for (int shift = 56; shift >= 0; shift -= 8) text += static_cast<char>(number >> shift);
}

std::uint64_t numberIn(std::string_view text) {
  std::uint64_t number = 0;
  for (const char byte : text.substr(0, 8)) {
    number = number << 8 | static_cast<unsigned char>(byte);
  }
  return number;
}

std::string headOf(const RelayRequest& request) {
  std::string head = {static_cast<char>(request.purpose), static_cast<char>(request.hasTls)};
  appendNumber(head, request.client);
  return head;
}

// IPv4 addresses are sent as IPv6 addresses (::ffff:a.b.c.d).
std::string bytesOf(const asio::ip::address& address) {
  const auto v6 = address.is_v6() ? address.to_v6()
                                  : asio::ip::make_address_v6(asio::ip::v4_mapped, address.to_v4());
  const auto bytes = v6.to_bytes();
  return {bytes.begin(), bytes.end()};
}

asio::ip::address addressIn(std::string_view text) {
  asio::ip::address_v6::bytes_type bytes;
  std::copy_n(text.begin(), bytes.size(), bytes.begin());
  const asio::ip::address_v6 v6(bytes);
  if (v6.is_v4_mapped()) return asio::ip::make_address_v4(asio::ip::v4_mapped, v6);
  return v6;
}

asio::awaitable<std::string> readText(tcp::socket& socket, std::size_t size) {
  std::string text(size, '\0');
  co_await asio::async_read(socket, asio::buffer(text), asio::use_awaitable);
  co_return text;
}

asio::awaitable<void> writeText(tcp::socket& socket, std::string text) {
  co_await asio::async_write(socket, asio::buffer(text), asio::use_awaitable);
}

RunError notARelay() {
  return {"not-a-relay", "the peer is not a cleave-relay of this version",
          "set dial.relay to the address that the relay's --register names"};
}

RunError wrongSecret() {
  return {"wrong-secret", "the relay and this server have different secrets",
          "copy the file that the relay's --secret names to this machine, and set dial.secret to "
          "its path"};
}

void checkVerdict(RelayVerdict verdict) {
  switch (verdict) {
    case RelayVerdict::accepted:
      return;
    case RelayVerdict::wrongSecret:
      throw wrongSecret();
    case RelayVerdict::needsTls:
      throw RunError(
          "relay-needs-tls",
          "the relay accepts clients from a network, and this server does not require TLS",
          "set tls.enabled, or let the relay listen on 127.0.0.1");
    case RelayVerdict::noClient:
      throw RunError("no-client", "the client has left, or has waited for too long");
  }
  throw notARelay();
}

}  // namespace

std::string readRelaySecret(const std::string& path) {
  const std::string text = readPrivateFile(path);
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t begin = std::min(text.find_first_not_of(kSpace), text.size());
  std::string secret = text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
  if (secret.size() < kMinSecretBytes) {
    throw UsageError("bad-secret", path + ": the secret has fewer than 16 bytes",
                     "make one: openssl rand -hex 32 > " + path);
  }
  return secret;
}

asio::steady_timer closeAfter(std::chrono::milliseconds time, SharedSocket socket) {
  asio::steady_timer timer(socket->get_executor(), time);
  timer.async_wait([socket = std::move(socket)](const boost::system::error_code& cancelled) {
    boost::system::error_code ignored;
    if (!cancelled) socket->close(ignored);
  });
  return timer;
}

// ---- The relay's half ----

RelayServerCheck::RelayServerCheck(SharedSocket socket, const std::string& secret)
    : socket_(std::move(socket)), secret_(secret), nonces_(makeNonce()) {}

asio::awaitable<std::optional<RelayRequest>> RelayServerCheck::readRequest() {
  co_await writeText(*socket_, std::string(kRelayMagic) + nonces_);
  const std::string text = co_await readText(*socket_, kRequestBytes);
  const std::string head = text.substr(0, kRequestHead);
  nonces_ += text.substr(kRequestHead, kNonceBytes);
  const std::string_view mac = std::string_view(text).substr(kRequestHead + kNonceBytes);
  if (!isSameSecret(mac, macOf(secret_, "server", nonces_ + head))) co_return std::nullopt;
  co_return RelayRequest{.purpose = static_cast<RelayPurpose>(head[0]),
                         .hasTls = head[1] != 0,
                         .client = numberIn(std::string_view(head).substr(2))};
}

asio::awaitable<void> RelayServerCheck::answer(RelayVerdict verdict) {
  const std::string head(1, static_cast<char>(verdict));
  co_await writeText(*socket_, head + macOf(secret_, "relay", nonces_ + head));
}

asio::awaitable<void> sendRelayEvent(tcp::socket& socket, RelayEvent event) {
  std::string text(1, static_cast<char>(event.kind));
  appendNumber(text, event.client);
  co_await writeText(socket, text + bytesOf(event.address));
}

asio::awaitable<void> readRelayPong(tcp::socket& socket) { co_await readText(socket, 1); }

// ---- The server's half ----

asio::awaitable<void> joinRelay(SharedSocket socket, const std::string& secret,
                                RelayRequest request) {
  const std::string challenge = co_await readText(*socket, kChallengeBytes);
  if (!challenge.starts_with(kRelayMagic)) throw notARelay();
  const std::string own = makeNonce();
  const std::string nonces = challenge.substr(kRelayMagic.size()) + own;
  const std::string head = headOf(request);
  co_await writeText(*socket, head + own + macOf(secret, "server", nonces + head));
  const std::string text = co_await readText(*socket, kVerdictBytes);
  const std::string verdict = text.substr(0, 1);
  // A relay with another secret signs its verdict with that secret.
  if (!isSameSecret(text.substr(1), macOf(secret, "relay", nonces + verdict))) throw wrongSecret();
  checkVerdict(static_cast<RelayVerdict>(verdict[0]));
}

asio::awaitable<RelayEvent> readRelayEvent(tcp::socket& socket) {
  const std::string text = co_await readText(socket, kEventBytes);
  const RelayEvent event{.kind = static_cast<RelayEvent::Kind>(text[0]),
                         .client = numberIn(std::string_view(text).substr(1)),
                         .address = addressIn(std::string_view(text).substr(9))};
  if (event.kind < RelayEvent::Kind::ping || event.kind > RelayEvent::Kind::replaced) {
    throw notARelay();
  }
  co_return event;
}

asio::awaitable<void> sendRelayPong(tcp::socket& socket) {
  co_await writeText(socket, std::string(1, kPong));
}

}  // namespace cleave
