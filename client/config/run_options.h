// The options shared by all commands that start a run.
#pragma once

#include <cstdint>
#include <string>

#include "common/program/program.h"

namespace cleave {

// Options of every command that connects to a server.
struct RunOptions {
  CommonOptions common;
  std::string server;  // HOST:PORT, or several of them, separated by commas; may be empty
  std::string tls;     // folder with this client's certificate; empty: from the configuration
  std::string runDir;  // empty: runs/<run id>
  bool json = false;
  // The following options are used only by `train`.
  std::string resume;            // folder of a run to continue; empty: a new run
  bool fromStart = false;        // starts from step 0, not from a checkpoint
  bool allowInexact = false;     // continues even if the results may not be bit-identical
  bool takeOver = false;         // continues even if the server has a newer client of the run
  std::uint64_t traceSteps = 0;  // number of steps that both sides trace; 0: no trace
};
void addRunOptions(CLI::App& command, RunOptions& options);
void addTlsOption(CLI::App& command, std::string& folder);

}  // namespace cleave
