// The setup shared by all commands that connect to a server.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "client/train/local_server.h"
#include "client/train/run_history.h"
#include "client/train/run_options.h"
#include "client/train/session.h"
#include "client/train/settings.h"
#include "client/train/user_model.h"
#include "common/core/environment.h"
#include "common/core/open_file.h"
#include "common/run/plan.h"

namespace cleave {

// What a run is for. A `verification` sends every flow losslessly, whatever the configuration says,
// and requests as many compute threads from the server as the client has. An `inference` trains
// nothing; it sends losslessly unless --set codec says otherwise. The names of runs other than
// `training` have a prefix.
enum class Purpose : std::uint8_t { training, measurement, verification, inference };

// Opens the data of a run. Throws UsageError.
using DataOpener = std::function<Datasets(const DataSettings&)>;

struct PreparedRun {
  ClientSettings settings;
  Datasets data;
  std::shared_ptr<const UserModel> userModel;  // for the model "graph"; else null
  wire::Hello hello;
  RunPlan plan;
  int threads = 1;
  std::string threadsText;  // number of threads and the reason for it, for the log
  ComputeDevice* device = nullptr;
  std::string folder;
  OpenFile lock;           // of the folder
  bool isResumed = false;  // its folder already had files of this run
  bool isRestart = false;  // this process has already begun it
  bool allowInexact = false;
  std::vector<RunCommit> commits;            // to continue from, newest first
  std::unique_ptr<LocalServer> localServer;  // if --server was not given
  ServerAddress server;
};

// Reads the configuration, opens the data and plans the run. Creates no files and starts no
// process: `folder` and `localServer` stay empty. Throws UsageError or RunError.
PreparedRun resolveRun(const RunOptions& options, Purpose purpose,
                       const DataOpener& open = openDatasets);

// Like resolveRun(), but also creates the run's folder, or opens that of the run to continue, and
// starts a local server if none was given.
PreparedRun prepareRun(const RunOptions& options, Purpose purpose,
                       const DataOpener& open = openDatasets);

// Like planRun(), with what only the client knows: loss, metrics, its precision, and the head and
// tail of a user's model, whose body is in the run spec. `model`: null for other models.
RunPlan clientPlan(const RunSpec& spec, const ClientSettings& settings, const UserModel* model);

// The initial weights from the configured file and from the file of a user's model. Fills in
// `report` if it is not null and a file is configured. Throws UsageError.
std::vector<NamedTensor> initialWeights(const PreparedRun& run, WeightsReport* report = nullptr);

// Throws ProtocolError for values that no correct server sends: both sides derive the plan from the
// same run spec.
void checkAnswer(const wire::HelloOk& ok, const RunPlan& plan);

// Removes what prepareRun() put into the folder of a run that never began. Does nothing if the run
// is resumed or has a local server.
void removeUnbegun(const PreparedRun& run);

// The number of compute threads of the client; by default fewer if the server is on this machine.
// `asked`: threads.client.
ThreadCount clientThreads(const RunOptions& options, int asked);

// Memory that the run needs on the client, estimated from shapes: bytes, without the program and
// the data.
std::size_t clientBytes(const PreparedRun& run);

}  // namespace cleave
