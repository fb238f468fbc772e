// Opens a TCP connection to a host and port.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <string>

namespace cleave {

// Resolves the host within 30 s, and connects to the first of its addresses that answers, within
// 5 s. Can be cancelled at any time. Throws boost::system::system_error;
// asio::error::host_not_found if there is no such host.
boost::asio::awaitable<boost::asio::ip::tcp::socket> connectTo(std::string host, std::string port);

}  // namespace cleave
