// cleave-server sessions: lists and ends the sessions of a running server.
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <nlohmann/json.hpp>
#include <string>

#include "common/core/log.h"
#include "common/core/terminal.h"
#include "common/program/program.h"
#include "server/commands/commands.h"
#include "server/status/ask_server.h"
#include "server/status/status_table.h"

namespace cleave {
namespace {

struct SessionsOptions {
  CommonOptions common;
  bool json = false;
  std::uint64_t session = 0;  // argument of `end`
};

int listCommand(const SessionsOptions& options) {
  startLog("cleave-server", options.common.logLevel);
  const auto status = askServer(socketOfServer(options.common), kStatusRequest);
  if (options.json) {
    writeOutput(status.at("sessions").dump(2) + "\n");
    return 0;
  }
  const std::size_t columns = isLiveTerminal(STDOUT_FILENO) ? terminalColumns(STDOUT_FILENO) : 0;
  const std::string table = sessionsTable(status, columns);
  writeOutput(table.empty() ? "no sessions\n" : table);
  return 0;
}

int endCommand(const SessionsOptions& options) {
  startLog("cleave-server", options.common.logLevel);
  const std::string number = std::to_string(options.session);
  const auto answer = askServer(socketOfServer(options.common), kEndRequest + number);
  if (!answer.value("ended", false)) {
    throw RunError("no-such-session", "the server has no session " + number,
                   "list its sessions: cleave-server sessions list" + optionsText(options.common));
  }
  writeOutput(options.json ? nlohmann::json({{"ended", options.session}}).dump(2) + "\n"
                           : "ended session " + number + "\n");
  return 0;
}

CLI::App* addCommand(CLI::App& sessions, SessionsOptions& options, const std::string& name,
                     const std::string& help, const std::string& example) {
  CLI::App* command = sessions.add_subcommand(name, help);
  addCommonOptions(*command, options.common, false);
  command->add_flag("--json", options.json, "Prints JSON, for programs");
  command->footer("Example:\n  cleave-server sessions " + example +
                  " --config configs/server.yaml\n\n"
                  "Give the configuration that the server was started with. Only the user "
                  "that runs the server can use this command.\n\n"
                  "Exit codes: 0 done, 1 no such server or session, 2 usage error.");
  return command;
}

}  // namespace

void addSessionsCommands(CLI::App& app, std::function<int()>& command) {
  static SessionsOptions options;
  CLI::App* sessions =
      app.add_subcommand("sessions", "Lists and ends the sessions of the server on this machine");
  sessions->require_subcommand(1);
  sessions->footer(
      "'cleave-server sessions COMMAND --help' shows a command's options and an example.");

  CLI::App* list = addCommand(*sessions, options, "list", "Lists the sessions", "list");
  list->callback([&] { command = [&] { return listCommand(options); }; });

  CLI::App* end =
      addCommand(*sessions, options, "end",
                 "Ends one session; its client reports an error and exits with code 1", "end 3");
  end->add_option("ID", options.session, "The session's number, as 'sessions list' shows it")
      ->required();
  end->callback([&] { command = [&] { return endCommand(options); }; });
}

}  // namespace cleave
