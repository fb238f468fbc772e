// Forwards bytes between two connections, without reading them. io thread.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstdint>

#include "common/core/clock.h"
#include "common/net/streams/relay_protocol.h"

namespace cleave::relay {

// A client and the server's connection for it.
struct Pair {
  SharedSocket client;
  SharedSocket server;
  std::uint64_t up = 0;  // bytes from the client to the server
  std::uint64_t down = 0;
  SteadyTime lastByte = now();
};

// Returns when both sides have closed their direction, or when one has failed; then both are reset.
// Reads from one side only as fast as the other accepts bytes.
boost::asio::awaitable<void> forward(std::shared_ptr<Pair> pair);

// A linger time of zero makes the kernel send a reset instead of a normal close.
void closeWithReset(boost::asio::ip::tcp::socket& socket);

}  // namespace cleave::relay
