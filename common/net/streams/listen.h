// Listening on an address and port that the user specifies.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <string>

#include "common/core/units.h"

namespace cleave {

// An IP address and a port: "127.0.0.1:4800", "[::1]:0"; port 0: the system chooses. Throws
// UsageError "bad-address".
boost::asio::ip::tcp::endpoint parseListen(const Placed& value);

// The options that set the address to listen on, for hints: {"listen.address", "--set
// listen.port="}; a port is appended to the second.
struct ListenOptions {
  std::string address;
  std::string port;
  std::string hint = {};  // of all errors, instead of hints about these two
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
