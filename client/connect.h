// From a server's address, and how to speak to it, to a connection that is open.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <memory>
#include <string>

#include "common/net/connection.h"
#include "proto/wire.pb.h"

namespace cleave {

struct ServerAddress {
  std::string host;
  std::string port;
  std::shared_ptr<const TlsContext> tls;  // null: plain
  std::string text() const { return host + ":" + port; }
};
// "HOST:PORT", "[::1]:4800", without TLS. Throws UsageError.
ServerAddress parseAddress(const std::string& text);

struct OpenConnection {
  std::shared_ptr<Connection> connection;
  wire::HelloOk ok;
};

// Connects and shakes hands. Tries again for `retrySeconds`: with back-off where no server answers,
// and when the server says where it refuses for now. With TLS the server's certificate must be for
// address.host. Throws RunError or UsageError: what made it impossible, or the server's refusal.
boost::asio::awaitable<OpenConnection> connectToServer(ServerAddress address, wire::Hello hello,
                                                       double retrySeconds);

// What a command ends with that a signal interrupts.
RunError interruptedError();

}  // namespace cleave
