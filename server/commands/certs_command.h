// cleave-server certs: creates, renews, revokes and lists certificates. Each command ends by
// printing the next command to run.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's name
class App;
}  // namespace CLI

namespace cleave {

struct CertsOptions {
  std::string folder = "certs";
  std::vector<std::string> names;  // init: the server's names and addresses
  std::string client;
  bool renew = false;
  bool json = false;
};

// Adds the commands to `app`. Assigns the chosen command to `command`. Borrows `options` and
// `command` until the command has run.
void addCertsCommands(CLI::App& app, CertsOptions& options, std::function<int()>& command);

}  // namespace cleave
