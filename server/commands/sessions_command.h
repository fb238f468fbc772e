// cleave-server sessions: lists and ends the sessions of a running server.
#pragma once

#include <cstdint>
#include <functional>

#include "common/program/program.h"

namespace cleave {

struct SessionsOptions {
  CommonOptions common;
  bool json = false;
  std::uint64_t session = 0;  // argument of `end`
};
// Adds `sessions list` and `sessions end`. The chosen one sets `command`, which reads `options`.
void addSessionsCommands(CLI::App& app, SessionsOptions& options, std::function<int()>& command);

}  // namespace cleave
