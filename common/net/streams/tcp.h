// Kernel options and statistics of a TCP connection. They have their own file because
// <linux/tcp.h>, which has all of TCP_INFO, cannot be included together with Asio. `socket` is a
// file descriptor. Errors are ignored: without these options a connection is slower, but correct.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace cleave {

// The kernel's view (TCP_INFO).
struct LinkInfo {
  double deliveryRate = 0;  // bytes per second
  double roundTripSeconds = 0;
  std::uint64_t retransmits = 0;  // segments, total
};

// Nullopt if the socket is not a TCP connection.
std::optional<LinkInfo> readLinkInfo(int socket);

// TCP_NODELAY: frames are sent immediately.
void sendWithoutDelay(int socket);
// TCP_NOTSENT_LOWAT: the kernel accepts data only while fewer than `bytes` bytes are unsent, so
// that an urgent tensor does not wait behind a long queue in the kernel.
void limitUnsent(int socket, std::size_t bytes);
// TCP_USER_TIMEOUT: closes the connection if sent data stays unacknowledged for this long.
void limitUnacknowledged(int socket, std::chrono::milliseconds time);

}  // namespace cleave
