// cleave-server runs: lists and removes the runs in the store.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>

#include "common/program/program.h"

namespace cleave {

struct RunsOptions {
  CommonOptions common;
  std::string identity;  // empty: all
  std::string run;       // to remove
  std::string older;     // "30d": removes all runs that have not changed for this long
  bool json = false;
};
// Adds `runs list` and `runs remove`. If one is used, sets `command`, which reads `options`.
void addRunsCommands(CLI::App& app, RunsOptions& options, std::function<int()>& command);

}  // namespace cleave
