// Opens a connection to a server's address and shakes hands.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/core/endpoint.h"
#include "common/net/connection.h"
#include "proto/wire.pb.h"

namespace cleave {

struct ServerAddress : Endpoint {
  std::shared_ptr<const TlsContext> tls;  // null: connect without TLS
};
// Parses "HOST:PORT", such as "[::1]:4800". The result has no TLS. Throws UsageError.
ServerAddress parseAddress(const std::string& text);
// The servers of a body: one, or its replicas in rank order.
using BodyServers = std::vector<ServerAddress>;
// Parses the addresses of a body's replicas, separated by "+". Throws UsageError.
BodyServers parseBodyServers(const std::string& text);
// Parses the addresses of all bodies, separated by commas. Throws UsageError.
std::vector<BodyServers> parseAddresses(const std::string& text);
// All servers of these bodies.
std::vector<ServerAddress> allServers(const std::vector<BodyServers>& bodies);

// What to do if no server listens at this address: a command that starts one there, with TLS if the
// client uses it or needs it, because without TLS a server listens on loopback only.
std::string startHint(const ServerAddress& address);

struct OpenConnection {
  std::shared_ptr<Connection> connection;
  wire::HelloOk ok;
};

// Connects and shakes hands. Retries for `retrySeconds`: with back-off if no server answers, or
// after the delay that the server's refusal specifies. `hello` is called for each connection that
// opens. With TLS, the server's certificate must be valid for address.host. Throws RunError or
// UsageError with the cause or with the server's refusal.
boost::asio::awaitable<OpenConnection> connectToServer(ServerAddress address,
                                                       std::function<wire::Hello()> hello,
                                                       double retrySeconds);

// Like connectToServer(), for a run whose connection broke. Retries after all errors that concern
// only the connection (ErrorKind::link).
boost::asio::awaitable<OpenConnection> reconnectToServer(ServerAddress address,
                                                         std::function<wire::Hello()> hello,
                                                         double retrySeconds);

// The error with which a command ends if a signal interrupts it.
RunError interruptedError();

}  // namespace cleave
