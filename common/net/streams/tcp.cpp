#include "common/net/streams/tcp.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace cleave {
namespace {

void setOption(int socket, int option, int value) {
  ::setsockopt(socket, IPPROTO_TCP, option, &value, sizeof value);
}

}  // namespace

std::optional<LinkInfo> readLinkInfo(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  LinkInfo link;
  link.deliveryRate = static_cast<double>(info.tcpi_delivery_rate);
  link.roundTripSeconds = info.tcpi_rtt * 1e-6;
  link.retransmits = info.tcpi_total_retrans;
  return link;
}

void sendWithoutDelay(int socket) { setOption(socket, TCP_NODELAY, 1); }

void limitUnsent(int socket, std::size_t bytes) {
  setOption(socket, TCP_NOTSENT_LOWAT, static_cast<int>(bytes));
}

void limitUnacknowledged(int socket, std::chrono::milliseconds time) {
  setOption(socket, TCP_USER_TIMEOUT, static_cast<int>(time.count()));
}

}  // namespace cleave
