#include "server/run/dialer.h"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <exception>
#include <type_traits>
#include <utility>

#include "common/core/log.h"
#include "common/net/streams/tcp.h"

namespace cleave {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr std::chrono::milliseconds kFirstPause{250};  // doubled after each failure
constexpr std::chrono::milliseconds kLongestPause{8000};
constexpr std::chrono::seconds kConnectTime{5};
constexpr std::size_t kMaxOpening = 64;  // connections that are being opened
// The relay disconnects clients for which no connection is opened.
constexpr std::size_t kMaxWaiting = 4096;

using Endpoints = tcp::resolver::results_type;

// Opens a connection and lets the relay accept it. `relay` is one endpoint or several.
template <typename Relay>
asio::awaitable<SharedSocket> join(Relay relay, const std::string& secret, RelayRequest request) {
  const auto socket = std::make_shared<tcp::socket>(co_await asio::this_coro::executor);
  const auto deadline = closeAfter(kConnectTime + kRelayHandshakeTime, socket);
  if constexpr (std::is_same_v<Relay, Endpoints>) {
    co_await asio::async_connect(*socket, relay, asio::use_awaitable);
  } else {
    co_await socket->async_connect(relay, asio::use_awaitable);
  }
  sendWithoutDelay(socket->native_handle());
  co_await joinRelay(socket, secret, request);
  co_return socket;
}

}  // namespace

Dialer::Dialer(const asio::any_io_executor& io, const DialSettings& settings, bool hasTls,
               Accept accept)
    : io_(io),
      relay_(settings.relay),
      secret_(readRelaySecret(settings.secretFile)),
      hasTls_(hasTls),
      accept_(std::move(accept)),
      pause_(kFirstPause),
      timer_(io) {}

void Dialer::stop() {
  stopped_ = true;
  timer_.cancel();
  boost::system::error_code ignored;
  if (control_) control_->close(ignored);
}

asio::awaitable<void> Dialer::run() {
  while (!stopped_) {
    try {
      co_await serveControl();
    } catch (const Error& error) {
      report(std::string(error.what()) + (error.hint().empty() ? "" : "; " + error.hint()));
    } catch (const boost::system::system_error& error) {
      report(error.code().message());
    }
    control_ = nullptr;
    if (stopped_) co_return;
    timer_.expires_after(pause_);
    pause_ = std::min(2 * pause_, kLongestPause);
    co_await timer_.async_wait(asio::as_tuple(asio::use_awaitable));
  }
}

// Ends only by throwing an exception.
asio::awaitable<void> Dialer::serveControl() {
  control_ = co_await registerServer();
  processLog()->info("registered with the relay {}", relay_.text());
  reported_.clear();
  pause_ = kFirstPause;
  waiting_.clear();
  while (true) {
    const auto deadline = closeAfter(kRelaySilence, control_);
    const RelayEvent event = co_await readRelayEvent(*control_);
    switch (event.kind) {
      case RelayEvent::Kind::ping:
        co_await sendRelayPong(*control_);
        break;
      case RelayEvent::Kind::client:
        if (waiting_.size() < kMaxWaiting) waiting_.push_back(event);
        openNext();
        break;
      case RelayEvent::Kind::replaced:
        pause_ = kLongestPause;
        throw RunError("relay-replaced", "another server has registered with the same secret",
                       "start one relay, with its own secret, for each server");
    }
  }
}

asio::awaitable<SharedSocket> Dialer::registerServer() {
  tcp::resolver resolver(io_);
  const Endpoints endpoints = co_await resolver.async_resolve(
      relay_.host, std::to_string(relay_.port), asio::use_awaitable);
  co_return co_await join(endpoints, secret_,
                          {.purpose = RelayPurpose::control, .hasTls = hasTls_});
}

void Dialer::openNext() {
  if (waiting_.empty() || opening_ >= kMaxOpening || !control_) return;
  boost::system::error_code error;
  const tcp::endpoint relay = control_->remote_endpoint(error);
  if (error) return;  // the relay is gone, and so are its clients
  const RelayEvent event = waiting_.front();
  waiting_.pop_front();
  ++opening_;
  asio::co_spawn(io_, openFor(event, relay), [this](std::exception_ptr bug) {
    --opening_;
    if (bug) std::rethrow_exception(bug);
    openNext();
  });
}

asio::awaitable<void> Dialer::openFor(RelayEvent event, tcp::endpoint relay) {
  try {
    const SharedSocket socket =
        co_await join(relay, secret_,
                      {.purpose = RelayPurpose::client, .hasTls = hasTls_, .client = event.client});
    processLog()->debug("the relay's client {} is at {}", event.client, event.address.to_string());
    accept_(std::move(*socket), event.address);
  } catch (const Error& error) {
    processLog()->debug("the relay's client {}: {}", event.client, error.what());
  } catch (const boost::system::system_error& error) {
    report(error.code().message());
  }
}

// The same problem is logged once, not at each attempt.
void Dialer::report(const std::string& problem) {
  if (stopped_ || problem == reported_) return;
  reported_ = problem;
  processLog()->warn("the relay {}: {}; trying again", relay_.text(), problem);
}

}  // namespace cleave
