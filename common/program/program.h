// Shared by the main functions of the programs: options, errors, exit codes.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "common/config/config_table.h"

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's name
class App;
}  // namespace CLI

namespace cleave {

// Options of every command that reads a configuration.
struct CommonOptions {
  std::string config;
  std::string configText;              // if not empty: instead of the content of that file
  std::vector<std::string> overrides;  // --set
  std::string logLevel = "info";
};
void addCommonOptions(CLI::App& command, CommonOptions& options, bool configRequired);

// Loads the configuration file if one was given, otherwise the defaults, and applies the overrides.
// Throws UsageError.
Config loadConfig(const CommonOptions& options);

// For commands in hints. Quotes a word for a shell if necessary.
std::string shellWord(const std::string& word);
// These options as words of a command, after a space: those of the configuration.
std::string optionsText(const CommonOptions& options);

struct KeysOptions {
  bool json = false;
  bool markdown = false;
};
// Adds the command `keys`, which prints the keys of this program's configuration. If it is used,
// sets `command`, which reads `options`.
void addKeysCommand(CLI::App& app, KeysOptions& options, std::vector<KeyText> (*keys)(),
                    std::function<int()>& command);

// Writes to stdout without a buffer, control characters included. Throws RunError "cannot-write".
void writeOutput(const std::string& text);

// Parses the arguments and runs `command`, which the callback of the chosen command sets. Prints
// errors to stderr and, if the arguments have --json or --json-lines, as JSON to stdout; it is also
// an error if std::cout could not be written. Returns the exit code: 0 success, 1 failed run, 2
// usage error.
int runProgram(CLI::App& app, int argc, char** argv, const std::function<int()>& command);

// Prints "PROGRAM: error [CODE]: SENTENCE" and the hint. Returns the exit code.
int reportError(const std::string& program, std::exception_ptr error);

}  // namespace cleave
