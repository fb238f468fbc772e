#include "stage/orders.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace cleave {

bool sendWithFiles(int socket, std::span<const std::byte> value, std::span<const int> files) {
  iovec part{const_cast<std::byte*>(value.data()), value.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kMaxOrderFiles * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!files.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(files.size_bytes());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(files.size_bytes());
    std::memcpy(CMSG_DATA(header), files.data(), files.size_bytes());
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(value.size());
}

bool receiveWithFiles(int socket, std::span<std::byte> value, std::vector<OpenFile>& files) {
  iovec part{value.data(), value.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kMaxOrderFiles * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t size = 0;
  do {
    size = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  if (size != static_cast<ssize_t>(value.size())) return false;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return true;
  const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
  for (std::size_t j = 0; j < count; ++j) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(header) + j * sizeof(int), sizeof number);
    files.emplace_back(number);
  }
  return true;
}

}  // namespace cleave
