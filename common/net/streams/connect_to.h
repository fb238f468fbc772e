// Opens a TCP connection to an endpoint.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <string>

#include "common/core/endpoint.h"

namespace cleave {

// Resolves the host within 30 s, and connects to the first of its addresses that answers, within
// 5 s. Can be cancelled at any time. Throws boost::system::system_error;
// asio::error::host_not_found if there is no such host.
boost::asio::awaitable<boost::asio::ip::tcp::socket> connectTo(Endpoint endpoint);

// Whether this is an address of the loopback interface.
bool isLoopback(const std::string& address);
// The same for a host: "localhost" counts too.
bool isLoopbackHost(const std::string& host);

}  // namespace cleave
