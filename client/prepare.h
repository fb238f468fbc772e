// What the commands that talk to a server begin with.
#pragma once

#include <memory>
#include <string>

#include "client/commands.h"
#include "client/local_server.h"
#include "client/session.h"
#include "client/settings.h"
#include "daemon/plan.h"

namespace cleave {

struct PreparedRun {
  ClientSettings settings;
  Datasets data;
  wire::Hello hello;
  RunPlan plan;
  std::vector<NamedTensor> weights;  // to begin with, where the configuration names a file
  int threads = 1;
  std::string threadsText;  // how many and why, for the log
  ComputeDevice* device = nullptr;
  std::string folder;
  std::unique_ptr<LocalServer> localServer;  // where no --server was given
  ServerAddress server;
};

// Reads the configuration, opens the data and plans the run; leaves nothing behind and starts
// nothing, so that `folder` and `localServer` stay empty. Throws UsageError or RunError.
// `losslessCodecs`: "none" on every flow, whatever the configuration says. `sameThreads`: the
// server is asked to compute with as many threads as the client.
PreparedRun resolveRun(const RunOptions& options, bool losslessCodecs, bool sameThreads);

// The same; then makes the run's folder, and starts a server where none was given.
PreparedRun prepareRun(const RunOptions& options, bool losslessCodecs, bool sameThreads);

// What the run needs at once at the client, estimated from shapes: bytes, without program and data.
std::size_t clientBytes(const PreparedRun& run);

// Puts the run's initial weights, if it has any, in place at the client and at the server.
void sendInitialWeights(const PreparedRun& run, ClientStage& stage, ClientSession& session);

}  // namespace cleave
