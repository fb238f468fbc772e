// The commands of cleave-client, one file each.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/program.h"

namespace cleave {

// Options of every command that talks to a server.
struct RunOptions {
  CommonOptions common;
  std::string server;  // HOST:PORT; empty: one of our own
  std::string runDir;  // empty: runs/<run id>
  bool json = false;
};
void addRunOptions(CLI::App& command, RunOptions& options);

struct VerifyOptions {
  RunOptions run;
  std::uint64_t steps = 3;
  double tolerance = 0;  // most relative difference; 0: equal to the bit
};

int trainCommand(const RunOptions& options);
// What `train` would do, without doing it.
int dryRunCommand(const RunOptions& options);
int verifyCommand(const VerifyOptions& options);

}  // namespace cleave
