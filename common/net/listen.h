// To listen on an address and port that a user has named.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <string>

#include "common/core/units.h"

namespace cleave {

// "127.0.0.1:4800", "[::1]:0": an IP address and a port; port 0: the system chooses. Throws
// UsageError "bad-address".
boost::asio::ip::tcp::endpoint parseListen(const Placed& value);

// How a user says where to listen, for the advice of errors: {"listen.address",
// "--set listen.port="}, where a port is to follow the second.
struct ListenOptions {
  std::string address;
  std::string port;
};

// Binds and listens. Opens the acceptor unless it is open. Throws UsageError "port-in-use",
// "cannot-bind".
void listenOn(boost::asio::ip::tcp::acceptor& acceptor,
              const boost::asio::ip::tcp::endpoint& endpoint, const ListenOptions& options);

// "127.0.0.1", "[::1]"
std::string hostText(const boost::asio::ip::address& address);
// "127.0.0.1:4800", "[::1]:4800"
std::string textOf(const boost::asio::ip::tcp::endpoint& endpoint);

}  // namespace cleave
