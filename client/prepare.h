// What the commands that talk to a server begin with.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "client/commands.h"
#include "client/local_server.h"
#include "client/session.h"
#include "client/settings.h"
#include "common/core/environment.h"
#include "daemon/plan.h"

namespace cleave {

// What a run is for. A `verification` sends every flow losslessly, whatever the configuration says,
// and asks the server to compute with as many threads as the client. The names of runs that are no
// training begin with what they are.
enum class Purpose : std::uint8_t { training, measurement, verification };

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
PreparedRun resolveRun(const RunOptions& options, Purpose purpose);

// The same; then makes the run's folder, and starts a server where none was given.
PreparedRun prepareRun(const RunOptions& options, Purpose purpose);

// Connects and says Hello, for connect.retry_seconds. Where that fails it leaves nothing of the
// run's folder: the run never began.
wire::HelloOk connectRun(const PreparedRun& run, ClientSession& session);

// Removes what prepareRun() left in the folder of a run that never began.
void removeUnbegun(const PreparedRun& run);

// How many threads the client computes with; fewer by default where the server is on this machine
// too. `asked`: threads.client.
ThreadCount clientThreads(const RunOptions& options, int asked);

// What the run needs at once at the client, estimated from shapes: bytes, without program and data.
std::size_t clientBytes(const PreparedRun& run);

// Puts the run's initial weights, if it has any, in place at the client and at the server.
void sendInitialWeights(const PreparedRun& run, ClientStage& stage, ClientSession& session);

}  // namespace cleave
