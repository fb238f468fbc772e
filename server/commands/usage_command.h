// cleave-server usage: what each identity has used of the server.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>

#include "common/program/program.h"

namespace cleave {

struct UsageOptions {
  CommonOptions common;
  std::string since = "30d";
  std::string identity;  // empty: all
  bool runs = false;
  bool json = false;
};
// Adds `usage`. If it is used, sets `command`, which reads `options`.
void addUsageCommand(CLI::App& app, UsageOptions& options, std::function<int()>& command);

}  // namespace cleave
