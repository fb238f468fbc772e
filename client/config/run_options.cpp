#include "client/config/run_options.h"

#include <CLI/CLI.hpp>

namespace cleave {

void addRunOptions(CLI::App& command, RunOptions& options) {
  addCommonOptions(command, options.common, true);
  command
      .add_option(
          "--server", options.server,
          "The server, or one per body, separated by commas, or the replicas of a body, separated "
          "by +; default: the key 'servers', or else the client starts its own on free loopback "
          "ports")
      ->type_name("HOST:PORT");
  addTlsOption(command, options.tls);
  command
      .add_option("--run-dir", options.runDir, "Folder for the files of the run (runs/<run id>)")
      ->type_name("DIR");
  command.add_flag("--json", options.json,
                   "Prints the result as JSON, and nothing else, on stdout");
}

void addTlsOption(CLI::App& command, std::string& folder) {
  command
      .add_option("--tls", folder,
                  "Uses TLS with ca.crt, client.crt and client.key in this folder; same as --set "
                  "tls.enabled=true --set tls.folder=DIR")
      ->type_name("DIR");
}

}  // namespace cleave
