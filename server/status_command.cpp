#include "server/status_command.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/core/durable.h"
#include "common/core/log.h"
#include "common/core/open_file.h"
#include "common/core/terminal.h"
#include "server/settings.h"
#include "server/status_socket.h"
#include "server/status_table.h"

namespace cleave {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::seconds kAnswerDeadline{5};
constexpr std::chrono::seconds kWatchEvery{1};

[[noreturn]] void throwNoServer(const std::string& path, const std::string& why) {
  std::error_code ignored;
  throw RunError("no-status",
                 "no server shows its status at " +
                     std::filesystem::absolute(path, ignored).string() + ": " + why,
                 "is one running? Give what it was started with (--config, --set store=DIR or "
                 "status.socket=PATH), in the same folder, as the same user");
}

// The document, whole.
std::string ask(const std::string& path) {
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
  std::string text;
  std::array<char, 1 << 16> bytes;
  while (text.size() < kMostStatusBytes) {
    const ssize_t got = ::read(socket.get(), bytes.data(), bytes.size());
    if (got == 0) break;
    if (got < 0 && errno != EINTR) throwNoServer(path, "it does not answer");
    if (got > 0) text.append(bytes.data(), static_cast<std::size_t>(got));
  }
  return text;
}

Json statusAt(const std::string& path) {
  const Json status = Json::parse(ask(path), nullptr, false);
  if (status.is_discarded()) throwNoServer(path, "its answer is not whole");
  return status;
}

void print(const Json& status, const StatusOptions& options) {
  if (options.json) {
    // A document a line, where there are several.
    writeAll(STDOUT_FILENO, status.dump(options.watch ? -1 : 2) + "\n");
  } else if (!isLiveTerminal(STDOUT_FILENO)) {
    writeAll(STDOUT_FILENO, statusTable(status, 0) + (options.watch ? "\n" : ""));
  } else {
    const std::string table = statusTable(status, terminalColumns(STDOUT_FILENO));
    writeAll(STDOUT_FILENO, options.watch ? "\x1b[H\x1b[J" + table : table);
  }
}

int statusCommand(const StatusOptions& options) {
  startLog("cleave-server", options.common.logLevel);
  Config config = loadConfig(options.common);
  const std::string path = readServerSettings(config).statusSocket;
  if (path.empty()) {
    throw UsageError("no-status", "status.socket is off: that server shows no status",
                     "leave status.socket out of its configuration, and start it again");
  }
  print(statusAt(path), options);
  while (options.watch) {
    std::this_thread::sleep_for(kWatchEvery);
    print(statusAt(path), options);
  }
  return 0;
}

}  // namespace

void addStatusCommand(CLI::App& app, StatusOptions& options, std::function<int()>& command) {
  CLI::App* status = app.add_subcommand(
      "status", "Shows what the server that runs here does: its sessions, memory and refusals");
  addCommonOptions(*status, options.common, false);
  status->add_flag("--watch", options.watch, "Again each second, until Ctrl-C or the server's end");
  status->add_flag("--json", options.json, "As JSON, for programs; with --watch a document a line");
  status->footer(
      "Example:\n  cleave-server status --config configs/server.yaml --watch\n\n"
      "Finds the server by the configuration that it was started with, and is for its own user: "
      "it speaks through <store>/.status/socket, or status.socket.\n\n"
      "Exit codes: 0 done, 1 no such server, or it has ended, 2 wrong use.");
  status->callback([&] { command = [&] { return statusCommand(options); }; });
}

}  // namespace cleave
