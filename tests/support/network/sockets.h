// Helpers for tests of programs that forward data between two sockets.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <cstdint>
#include <vector>

namespace cleave::test {

using Bytes = std::vector<std::uint8_t>;

inline Bytes pattern(std::size_t size, std::uint32_t seed) {
  Bytes bytes(size);
  for (std::uint8_t& byte : bytes) {
    seed = seed * 1664525 + 1013904223;
    byte = static_cast<std::uint8_t>(seed >> 24);
  }
  return bytes;
}

// The two ends of one connection through the program under test.
struct Ends {
  boost::asio::ip::tcp::socket client;
  boost::asio::ip::tcp::socket server;
};

inline Bytes readExactly(boost::asio::ip::tcp::socket& socket, std::size_t size) {
  Bytes bytes(size);
  boost::asio::read(socket, boost::asio::buffer(bytes));
  return bytes;
}

inline boost::system::error_code readError(boost::asio::ip::tcp::socket& socket) {
  std::uint8_t byte = 0;
  boost::system::error_code error;
  boost::asio::read(socket, boost::asio::buffer(&byte, 1), error);
  return error;
}

}  // namespace cleave::test
