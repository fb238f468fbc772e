// cleave-server status: shows what a running server is doing.
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/core/error.h"
#include "common/core/log.h"
#include "common/core/terminal.h"
#include "common/program/program.h"
#include "server/commands/commands.h"
#include "server/status/ask_server.h"
#include "server/status/status_table.h"

namespace cleave {
namespace {

struct StatusOptions {
  CommonOptions common;
  bool watch = false;
  bool json = false;
};

using Json = nlohmann::ordered_json;

constexpr std::chrono::seconds kWatchEvery{1};

void print(const Json& status, const StatusOptions& options) try {
  if (options.json) {
    // With --watch, each document is one line.
    writeOutput(status.dump(options.watch ? -1 : 2) + "\n");
  } else if (!isLiveTerminal(STDOUT_FILENO)) {
    writeOutput(statusTable(status, 0) + (options.watch ? "\n" : ""));
  } else {
    const std::string table = statusTable(status, terminalColumns(STDOUT_FILENO));
    writeOutput(options.watch ? "\x1b[H\x1b[J" + table : table);
  }
} catch (const Json::exception& error) {
  throw RunError("bad-status",
                 std::string("the running server's status cannot be shown: ") + error.what(),
                 "restart the server if it is of another version of Cleave, or add --json");
}

int statusCommand(const StatusOptions& options) {
  startLog("cleave-server", options.common.logLevel);
  const std::string socket = socketOfServer(options.common);
  print(askServer(socket, kStatusRequest), options);
  while (options.watch) {
    std::this_thread::sleep_for(kWatchEvery);
    print(askServer(socket, kStatusRequest), options);
  }
  return 0;
}

}  // namespace

void addStatusCommand(CLI::App& app, std::function<int()>& command) {
  static StatusOptions options;
  CLI::App* status = app.add_subcommand(
      "status", "Shows the sessions, memory and refusals of the server on this machine");
  addCommonOptions(*status, options.common, false);
  status->add_flag("--watch", options.watch,
                   "Repeats every second, until Ctrl-C or the server exits");
  status->add_flag("--json", options.json,
                   "Prints JSON, for programs; with --watch one document per line");
  status->footer(
      "Example:\n  cleave-server status --config configs/server.yaml --watch\n\n"
      "Give the configuration that the server was started with. Only the user that runs the "
      "server can use this command. The socket is the value of status.socket, by default "
      "<store>/.status/socket.\n\n"
      "Exit codes: 0 done, 1 no such server or it has exited, 2 usage error.");
  status->callback([&] { command = [&] { return statusCommand(options); }; });
}

}  // namespace cleave
