// cleave-server status: shows what a running server is doing.
#pragma once

#include <functional>

#include "common/program/program.h"

namespace cleave {

struct StatusOptions {
  CommonOptions common;
  bool watch = false;
  bool json = false;
};
// Adds `status`. If chosen, it sets `command`, which reads `options`.
void addStatusCommand(CLI::App& app, StatusOptions& options, std::function<int()>& command);

}  // namespace cleave
