// What the main functions of both daemons share: options, errors, exit codes.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "common/core/config.h"

namespace CLI {  // NOLINT(readability-identifier-naming): its own
class App;
}  // namespace CLI

namespace cleave {

// Options that every command of both daemons has.
struct CommonOptions {
  std::string config;
  std::vector<std::string> overrides;  // --set
  std::string logLevel = "info";
};
void addCommonOptions(CLI::App& command, CommonOptions& options, bool configRequired);

// The configuration they name; with none, defaults and overrides alone. Throws UsageError.
Config loadConfig(const CommonOptions& options);

// Parses, runs the command whose callback sets `command`, and turns every error into a sentence on
// stderr and an exit code: 0 done, 1 failed run, 2 wrong use.
int runProgram(CLI::App& app, int argc, char** argv, const std::function<int()>& command);

// Prints "PROGRAM: sentence" and the fix. Returns the exit code.
int reportError(const std::string& program, std::exception_ptr error);

}  // namespace cleave
