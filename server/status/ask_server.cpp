#include "server/status/ask_server.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>

#include "common/core/error.h"
#include "common/core/open_file.h"
#include "server/config/settings.h"
#include "server/status/status_socket.h"

namespace cleave {
namespace {

constexpr std::chrono::seconds kAnswerDeadline{5};

[[noreturn]] void throwNoServer(const std::string& path, const std::string& why) {
  std::error_code ignored;
  throw RunError("no-status",
                 "no server shows its status at " +
                     std::filesystem::absolute(path, ignored).string() + ": " + why,
                 "start the server, or pass the options it was started with (--config, --set "
                 "store=DIR or status.socket=PATH), in the same folder and as the same user");
}

// Returns the complete document.
std::string ask(const std::string& path, const std::string& request) {
  std::string address;
  const OpenFile socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  std::unique_ptr<SocketPlace> place;
  try {
    place = std::make_unique<SocketPlace>(path);
  } catch (const RunError& error) {
    throwNoServer(path, error.what());
  }
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  address = place->address();
  if (address.size() >= sizeof name.sun_path) throwNoServer(path, "its name is too long");
  std::memcpy(name.sun_path, address.c_str(), address.size() + 1);
  const timeval deadline{kAnswerDeadline.count(), 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) {
    throwNoServer(path, std::strerror(errno));
  }
  const std::string line = request + "\n";
  if (::send(socket.get(), line.data(), line.size(), MSG_NOSIGNAL) < 0) {
    throwNoServer(path, std::strerror(errno));
  }
  std::string text;
  std::array<char, 1 << 16> bytes;
  while (text.size() < kMaxStatusBytes) {
    const ssize_t got = ::read(socket.get(), bytes.data(), bytes.size());
    if (got == 0) break;
    if (got < 0 && errno != EINTR) throwNoServer(path, "it does not answer");
    if (got > 0) text.append(bytes.data(), static_cast<std::size_t>(got));
  }
  return text;
}

}  // namespace

std::string socketOfServer(const CommonOptions& options) {
  Config config = loadConfig(options);
  const std::string path = readServerSettings(config).statusSocket;
  if (!path.empty()) return path;
  throw UsageError("status-off", "status.socket is off, so that server shows no status",
                   "remove status.socket from its configuration, and restart it");
}

nlohmann::ordered_json askServer(const std::string& socket, const std::string& request) {
  auto answer = nlohmann::ordered_json::parse(ask(socket, request), nullptr, false);
  if (answer.is_discarded()) throwNoServer(socket, "its answer is incomplete");
  return answer;
}

}  // namespace cleave
