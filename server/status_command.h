// cleave-server status: what a running server does, for its operator.
#pragma once

#include <functional>

#include "daemon/program.h"

namespace cleave {

struct StatusOptions {
  CommonOptions common;
  bool watch = false;
  bool json = false;
};
// Adds `status`. Where it is given it sets `command`, which reads `options`.
void addStatusCommand(CLI::App& app, StatusOptions& options, std::function<int()>& command);

}  // namespace cleave
