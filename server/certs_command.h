// cleave-server certs: creates, renews, revokes and lists certificates. Each command ends by
// printing the next one to type.
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
  std::vector<std::string> names;  // init: the server's
  std::string client;
  bool renew = false;
  bool json = false;
};

// Adds the commands to `app`. The chosen one is assigned to `command`. Borrows `options` and
// `command` until it has run.
void addCertsCommands(CLI::App& app, CertsOptions& options, std::function<int()>& command);

// Quotes a word for a shell if necessary.
std::string shellWord(const std::string& word);

}  // namespace cleave
