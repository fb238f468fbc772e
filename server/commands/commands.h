// The commands of cleave-server apart from `serve`; each has its own source file. A function
// add…Command() adds a command with its options to `app`. If the user runs that command, its
// callback sets `command` to a function that runs it and returns the exit code.
#pragma once

#include <functional>

#include "common/program/program.h"

namespace cleave {

void addStatusCommand(CLI::App& app, std::function<int()>& command);
void addServerProfileCommand(CLI::App& app, std::function<int()>& command);
void addSessionsCommands(CLI::App& app, std::function<int()>& command);
void addRunsCommands(CLI::App& app, std::function<int()>& command);
void addUsageCommand(CLI::App& app, std::function<int()>& command);
void addCertsCommands(CLI::App& app, std::function<int()>& command);

}  // namespace cleave
