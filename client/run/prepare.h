// The setup shared by all commands that connect to a server.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <spdlog/logger.h>

#include "client/config/run_options.h"
#include "client/config/setting_changes.h"
#include "client/config/settings.h"
#include "client/config/user_model.h"
#include "client/data/samples/loader.h"
#include "client/run/local_server.h"
#include "client/run/run_history.h"
#include "client/run/session.h"
#include "common/core/open_file.h"
#include "common/files/environment.h"
#include "common/predict/profile.h"
#include "common/run/plan.h"

namespace cleave {

// The purpose of a run. A `verification` sends every flow losslessly and ignores the configured
// codecs; it requests as many compute threads from the server as the client has. An `inference`
// trains nothing; it sends losslessly unless --set codec overrides this. Runs other than `training`
// have a prefix in their names.
enum class Purpose : std::uint8_t { training, measurement, verification, inference };

// Opens the data of a run. Throws UsageError.
using DataOpener = std::function<Datasets(const DataSettings&)>;

struct PreparedRun {
  ClientSettings settings;
  Datasets data;
  DataDigest trainDigest, evaluationDigest;    // of `data`; only of a training run
  std::shared_ptr<const UserModel> userModel;  // null unless the model is "graph"
  wire::Hello hello;                           // without a run spec
  RunPlan plan;                                // of the client: see planClient()
  // A plan per server, in the order of the model; those of a body's replicas in rank order.
  std::vector<RunPlan> bodies;
  int threads = 1;
  std::string threadsText;  // number of threads and the reason for it, for the log
  ComputeDevice* device = nullptr;
  std::string folder;
  // Continues the run with the addresses and certificates of this call, if they are not recorded.
  std::string resumeCommand;
  OpenFile lock;           // lock on the folder
  bool isResumed = false;  // the folder already had files of this run
  bool isRestart = false;  // this process has already started the run
  bool allowInexact = false;
  std::vector<RunCommit> commits;     // checkpoints to continue from, newest first
  std::vector<std::string> warnings;  // sentences without a full stop; see logWarnings()
  // In a cohort: the settings that all members must have alike, and their values.
  std::map<std::string, std::string> agreed;
  std::vector<SettingChange> changes;  // of a resumed run, until continueRun() records them
  // Servers that the client has started itself; empty if addresses were given.
  std::vector<std::unique_ptr<LocalServer>> localServers;
  // One per element of `bodies`; empty until local servers are started.
  std::vector<ServerAddress> servers;

  // The training samples, of all members of a cohort together; in a relay, of this one. Those of
  // others are known after TrainRun::connect().
  std::uint32_t trainSamples() const {
    return plan.joint ? plan.joint->samples() : data.train->size();
  }
  // Of an epoch, from 1; in a cohort, unless members leave before its end.
  std::uint64_t lastStepOf(std::uint64_t epoch) const;
  std::uint64_t epochOf(std::uint64_t step) const;  // `step` > 0
  std::uint64_t totalSteps() const;  // of the whole run; in a relay, until the end of this turn
  // In a relay, after TrainRun::connect(): the number of this turn.
  std::uint64_t turn() const;
  // One per body: of replicas, that of the first one.
  std::vector<RunPlan> plansOfBodies() const;
  // The replica that each server is.
  std::vector<Replica> replicas() const;
};

// The id of a body's run on its server.
std::string runIdOf(const PreparedRun& run, std::size_t body);
// The Hello for the server of this body.
wire::Hello helloFor(const PreparedRun& run, std::size_t body);
// Throws UsageError "several-servers" if there are several. `what`: a command or an option that
// supports only one.
void requireOneServer(const ClientSettings& settings, const std::string& what);
// The smallest number of micro-batches of a batch, also of the last one of an epoch or an
// evaluation.
std::uint32_t minMicroBatchCount(const ClientSettings& settings, const Datasets& data);
// Throws UsageError "bad-replicas" if there are more replicas than that.
void checkReplicaBatches(const ClientSettings& settings, const Datasets& data);
// Throws UsageError "several-servers" if the run has several servers and learned inserts.
void requireProfilable(const PreparedRun& run);
// Returns the run with its exported model divided at all of these cuts, so that its blocks can be
// profiled and `plan` can move its cuts. A block has the name of the cut after it; the last one is
// called "(rest)". Such a run cannot be trained. Returns a run with another model unchanged. Throws
// UsageError "other-profile" if `cuts` lacks one of the configured cuts.
PreparedRun dividedAt(PreparedRun run, std::vector<std::string> cuts);
// The cuts at which the model of this profile was divided.
std::vector<std::string> cutsOf(const Profile& profile);
// The servers' addresses, such as "10.0.0.5:4800, 10.0.0.6:4800"; those of replicas are separated
// by "+".
std::string addressesText(const PreparedRun& run);

// Reads the configuration, opens the data and plans the run. Creates no files and starts no
// process, so `folder` and `localServers` stay empty. Throws UsageError or RunError.
PreparedRun resolveRun(const RunOptions& options, Purpose purpose,
                       const DataOpener& open = openDatasets);

// Logs `run.warnings`. For commands that train.
void logWarnings(const PreparedRun& run, spdlog::logger& log);

// Like resolveRun(). Also creates the run's folder, or opens the folder of the run to continue, and
// starts local servers if no address is given.
PreparedRun prepareRun(const RunOptions& options, Purpose purpose,
                       const DataOpener& open = openDatasets);

// The overrides that the configuration of an earlier run or model implies; `storedConfig` may be
// empty. If it is from before data.holdout_from existed, the last samples were held out, except of
// image files. With the present default, the model would be evaluated on samples that it was
// trained on.
std::vector<std::string> impliedOverrides(const std::string& storedConfig);
// The configuration with these overrides. `path`: for messages.
Config parseStoredConfig(const std::string& storedConfig, const std::string& path);

// Like planClient(), but the plan also has loss, metrics and the client's precision. `model`: null
// unless the model is "graph".
RunPlan clientPlan(const RunSpec& spec, const ClientSettings& settings, const UserModel* model);
// Chooses the flows whose codecs run on the device: see useDeviceCodecs(). Requires `device`.
void placeCodecs(PreparedRun& run);
// The plan of each body. `plan`: the client's.
std::vector<RunPlan> bodyPlans(const RunPlan& plan, const ClientSettings& settings,
                               const Dataset& train, const UserModel* model);
// Plans the run with this spec from makeRunSpec(): sets `plan` and `bodies`.
void planFor(PreparedRun& run, const RunSpec& spec);

// Reads the initial weights from the configured file and from the file of a user's model. Fills in
// `report` if it is not null and a weights file is configured. Throws UsageError.
std::vector<NamedTensor> initialWeights(const PreparedRun& run, WeightsReport* report = nullptr);

// Throws ProtocolError if the HelloOk contradicts the plan. A correct server never sends such
// values, because both sides derive the plan from the same run spec.
void checkAnswer(const wire::HelloOk& ok, const RunPlan& plan);

// For a run that never started: removes the files that prepareRun() created in its folder. Does
// nothing if the run is resumed or has local servers.
void removeUnbegun(const PreparedRun& run);

// The number of compute threads of the client. The default is lower if the server is on the same
// machine. `asked`: the value of threads.client.
ThreadCount clientThreads(const RunOptions& options, int asked);

// The number of samples in the smallest micro-batch of a full batch or of an epoch's last batch.
std::uint32_t minMicroBatch(const ClientSettings& settings, const Dataset& train);

// How to load the training data of an epoch, and the evaluation data: in a cohort, this member's
// samples of each batch.
Loader::Options trainingOptions(const PreparedRun& run, std::uint64_t epoch);
// Loads the samples of this pass.
void usePass(JointPlan::Pass pass, Loader::Options& options);
// Without a cohort.
Loader::Options trainingOptions(const ClientSettings& settings, const Datasets& data,
                                std::uint64_t epoch);
Loader::Options evaluationOptions(const PreparedRun& run);

// The first batch of the first epoch.
Batch firstBatch(const PreparedRun& run);

// The bytes of memory that a run with this plan needs on the client, estimated from shapes.
// Excludes the program and the dataset. `plan`: from clientPlan(). `bodies`: the plans of all
// servers.
std::size_t clientBytes(const RunPlan& plan, const std::vector<RunPlan>& bodies,
                        const Dataset& train);

}  // namespace cleave
