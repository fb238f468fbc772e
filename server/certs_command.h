// cleave-server certs: makes, renews, revokes and lists certificates. Each command ends by printing
// the next one to type.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): its own
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

// Adds the commands to `app`; the one that is chosen becomes `command`. Borrows both until then.
void addCertsCommands(CLI::App& app, CertsOptions& options, std::function<int()>& command);

// A word as a shell takes it: in quotes where it needs them.
std::string shellWord(const std::string& word);

}  // namespace cleave
