// Serves clients through a relay (tools/relay), for a server that clients cannot reach directly,
// such as one behind NAT. Keeps a control connection to the relay, and opens another connection for
// each client that the relay announces. io thread.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <deque>
#include <functional>
#include <string>

#include "common/net/streams/relay_protocol.h"
#include "server/config/settings.h"

namespace cleave {

class Dialer {
 public:
  // Receives a connection that carries the client's bytes, and the client's address as reported by
  // the relay.
  using Accept = std::function<void(boost::asio::ip::tcp::socket socket,
                                    const boost::asio::ip::address& client)>;

  // Reads the secret. Throws the errors of readRelaySecret(). `hasTls`: whether clients need TLS.
  Dialer(const boost::asio::any_io_executor& io, const DialSettings& settings, bool hasTls,
         Accept accept);

  // Registers with the relay, and again whenever the control connection is lost, until stop().
  boost::asio::awaitable<void> run();
  // Connections that were opened for clients stay open.
  void stop();

 private:
  boost::asio::awaitable<void> serveControl();
  boost::asio::awaitable<SharedSocket> registerServer();
  boost::asio::awaitable<void> openFor(RelayEvent event, boost::asio::ip::tcp::endpoint relay);
  void openNext();
  void report(const std::string& problem);

  const boost::asio::any_io_executor io_;
  const Endpoint relay_;
  const std::string secret_;
  const bool hasTls_;
  const Accept accept_;
  SharedSocket control_;            // null: not registered
  std::deque<RelayEvent> waiting_;  // clients for which no connection is being opened yet
  std::size_t opening_ = 0;
  std::chrono::milliseconds pause_;  // before the next attempt to register
  std::string reported_;             // the last problem in the log
  boost::asio::steady_timer timer_;
  bool stopped_ = false;
};

}  // namespace cleave
