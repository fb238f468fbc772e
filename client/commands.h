// The commands of cleave-client, one file each.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "client/local_server.h"
#include "client/session.h"
#include "client/settings.h"
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
};

int trainCommand(const RunOptions& options);
int verifyCommand(const VerifyOptions& options);

// What train and verify begin with.
struct PreparedRun {
  ClientSettings settings;
  Datasets data;
  wire::Hello hello;
  RunPlan plan;
  int threads = 1;
  std::string folder;
  std::unique_ptr<LocalServer> localServer;  // where no --server was given
  ServerAddress server;
};

// Reads the configuration, opens the data, plans the run, makes its folder and starts a server
// where none was given. Throws UsageError or RunError. `losslessCodecs`: "none" on every flow,
// whatever the configuration says. `sameThreads`: the server is asked to compute with as many
// threads as the client.
PreparedRun prepareRun(const RunOptions& options, bool losslessCodecs, bool sameThreads);

}  // namespace cleave
