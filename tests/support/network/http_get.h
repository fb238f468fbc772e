// A minimal HTTP client for tests: one request to a local server, one connection.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace cleave::test {

// Returns the body. Throws if the connection fails or the status is not 200.
inline std::string httpGet(std::uint16_t port, const std::string& target) {
  namespace asio = boost::asio;
  asio::io_context context;
  asio::ip::tcp::socket socket(context);
  socket.connect({asio::ip::address_v4::loopback(), port});
  asio::write(socket, asio::buffer("GET " + target +
                                   " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
  std::string answer;
  boost::system::error_code end;
  asio::read(socket, asio::dynamic_buffer(answer), end);
  const std::size_t body = answer.find("\r\n\r\n");
  if (!answer.starts_with("HTTP/1.1 200 ") || body == std::string::npos) {
    throw std::runtime_error(target + " was answered with: " + answer.substr(0, 200));
  }
  return answer.substr(body + 4);
}

}  // namespace cleave::test
