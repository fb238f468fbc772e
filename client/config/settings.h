// The client's configuration, which describes the whole experiment.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/codecs/codec_choice.h"
#include "client/codecs/quality_watch.h"
#include "client/config/learning_rate.h"
#include "client/config/weights_file.h"
#include "client/data/formats/formats.h"
#include "client/data/samples/data_digest.h"
#include "client/data/samples/subset.h"
#include "common/config/config.h"
#include "common/graph/adapters.h"
#include "common/model/stage/stage.h"
#include "common/run/metrics.h"
#include "common/run/run_spec.h"
#include "common/run/tls_settings.h"
#include "common/topology/turns.h"

namespace cleave {

// Selects the samples of the training set that the run trains on.
struct DataSubset {
  std::uint32_t folds = 0;     // 0: no folds; the run evaluates on the test set
  std::uint32_t fold = 1;      // 1 … folds: the fold to evaluate on instead of the test set
  std::uint32_t perClass = 0;  // number of training samples per class; 0: all
  bool isBalanced = false;     // data.sampling: balanced

  bool operator==(const DataSubset&) const = default;
};

struct DataSettings {
  std::string format;  // a name in dataFormatTable()
  DataFormatKeys keys;
  std::uint32_t holdout = 0;  // number of training samples to evaluate on instead of the test set
  std::string holdoutFrom =
      "random";  // "random": random samples are held out; "end": the last ones
  std::vector<std::string> classNames;  // override the names in the data; empty: no override
  std::uint32_t skip = 0;  // maximum number of damaged samples per set; see skipDamaged()
  DataSubset subset;
  std::uint32_t threads = 0;  // Loader::Options::threads

  // If false, part of the training set is evaluated, and the test set is not opened.
  bool hasTestSet() const { return holdout == 0 && subset.folds == 0; }
};

struct CheckpointSettings {
  double everySeconds = 60;      // between checkpoints; 0: no time-based checkpoints
  std::uint64_t everySteps = 0;  // between checkpoints; 0: no step-based checkpoints
  std::uint32_t keep = 2;        // number of checkpoints to keep
  bool mustSucceed = false;      // a checkpoint that cannot be made ends the run

  bool enabled() const { return everySeconds > 0 || everySteps > 0; }
};

// The run ends after an epoch if a metric has not improved in `patience` evaluations.
struct EarlyStop {
  std::string metric;  // empty: the run never stops early
  bool isGreatest = true;
  std::uint64_t patience = 3;
  double minChange = 0;  // a smaller change does not count as an improvement

  bool operator==(const EarlyStop&) const = default;
};

// A value of a metric; the summary says when the run has reached it.
struct Target {
  std::string metric;  // empty: there is no target
  double value = 0;
};

// Checks whether the server's gradients are those of the model: see GradientCheck.
struct DetectionSettings {
  bool isOn = false;
  std::uint64_t every = 50;  // average distance of the checked steps
};

// What a run's data, model and initial weights are called in a table of published figures; empty:
// what the configuration calls them.
struct KnownAs {
  std::string data, model, start;
};

struct ClientSettings : Experiment {
  std::string name = "run";
  KnownAs knownAs;
  std::string modelFile;              // for the model "graph"
  std::vector<std::string> cutNames;  // for the model "graph": names of modules
  LoraSpec lora;                      // for the model "graph"
  std::vector<int> cuts;              // positions of blocks; empty: the model's default
  // HOST:PORT of each body's server, or of its replicas, joined with "+"; may be empty.
  std::vector<std::string> servers;
  // The number of servers of each body, in model order; empty: one each.
  std::vector<std::uint32_t> bodyReplicas;
  std::string member;            // in a cohort: the name of this client
  std::string cohortKeyFile;     // in a relay: the key that seals what the members hand on
  std::uint32_t turnEpochs = 1;  // in a relay: epochs of a turn
  bool hasDirectLinks = false;   // the servers exchange the tensors between them directly
  // Addresses (HOST:PORT) that servers use to connect to the next server, for each server except
  // the first; empty: the addresses that the client uses.
  std::vector<std::string> directAddresses;
  WeightsSettings weights;
  DataSettings data;
  std::uint32_t batch = 64;
  std::uint64_t epochs = 1;
  std::uint64_t maxSteps = 0;        // 0: no limit
  LearningRateOptions learningRate;  // without totalSteps, which depends on the data
  double warmupEpochs = 0;
  // The learning-rate factor of each group in `optimizer.groups`.
  std::vector<double> groupRates;
  double clipNorm = 0;  // maximum global gradient norm; 0: no limit
  ScoreSpec scores;
  EarlyStop stop;
  Target target;
  Precision clientPrecision = Precision::fp32;
  bool mayScaleLoss = true;  // in fp16
  std::string bestMetric;    // metric that selects the best model to keep; empty: no model is kept
  bool bestIsGreatest = true;
  bool keepsLast = true;  // saves the model after each epoch
  std::uint32_t evalBatch = 256;
  std::uint32_t evalEvery = 1;  // in epochs
  // For each flow with the codec `auto`, the codecs to choose from. Flows with a fixed codec have
  // no entry.
  std::map<std::string, std::vector<ParsedCodec>> autoCodecs;
  AutoBudget autoBudget;  // of all these flows
  QualitySettings quality;
  DetectionSettings detection;
  std::vector<DefenceSpec> defences;
  std::string defenceKeyFile;  // of what they draw
  std::string device = "cpu";  // device of head and tail
  int clientThreads = 0;
  std::uint32_t errorEvery = 100;
  std::size_t rotateBytes = 0;          // size at which the run's CSV files are rotated; 0: never
  bool tensorBoard = false;             // whether to write event files for TensorBoard
  std::optional<HttpSettings> metrics;  // metrics endpoint; empty: no endpoint
  double retrySeconds = 30;
  CheckpointSettings checkpoint;
  bool samplesOnDisk = false;  // whether the samples that codecs keep are in a file
  // How long to retry after the connection breaks; 0: the run then ends.
  double reconnectSeconds = 600;
  double progressSeconds = 600;  // how long to wait without progress; 0: forever
  TlsSettings tls;               // used only with --server; a local server listens on loopback
  bool probeFirst = false;       // whether to measure the link before training
  double probeSeconds = 5;       // approximate time limit for the probe
  std::string resolved;          // the configuration with all defaults, as YAML

  bool scalesLoss() const {
    return mayScaleLoss && (clientPrecision == Precision::fp16 || bodyPrecision == Precision::fp16);
  }
  // The number of bodies, each of which has a server of its own.
  std::size_t bodies() const {
    const std::size_t count = std::max(cuts.size(), cutNames.size());
    return count == 0 ? 1 : count - 1;
  }
  // Whether the run has edges: direct links between its servers.
  bool hasEdges() const { return hasDirectLinks && bodies() > 1; }
  // The configured positions of the cuts among the model's blocks; empty: the model's default. The
  // blocks of a graph are its head, its bodies and its tail.
  std::vector<int> cutPositions() const;
  // The first metric; "loss" if no metric is configured.
  std::string mainMetric() const;
};

// All keys of the client's configuration. A run that is resumed may change those with
// KeyMark::mayChange. Other changes need a separate run.
std::vector<KeyText> clientKeys();
// Throws UsageError.
ClientSettings readClientSettings(Config& config);
// The values of all keys, as YAML, with a codec per flow. `config`: after readClientSettings().
std::map<std::string, std::string> valuesOf(const Config& config, const ClientSettings& settings);

struct Datasets {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> test;  // the evaluation data
  // The training samples by class. Null unless data.sampling is `balanced`.
  std::shared_ptr<const SamplesByClass> balanced = nullptr;
};
// Throws UsageError. If settings.keys.damage is set, a split that cannot be opened is null; if that
// is the training set, so are both.
Datasets openDatasets(const DataSettings& settings);
// Opens the data for a trained model, without the training set. Both members of the result are the
// test set or, if `inputs` is not empty, the samples in these files and folders. `learned`:
// Dataset::learned() of the training set. `trained`: its digest, with which held-out samples are
// those of the training run. Throws UsageError.
Datasets openForInference(const DataSettings& settings, const nlohmann::json& learned,
                          const std::vector<std::string>& inputs = {},
                          const DataDigest& trained = {});

class UserModel;
// The run spec for these settings and this data, with all bodies joined into one. With one body,
// this is what its server receives; otherwise it is the input of bodyRunSpecs(). `userModel`: null
// unless the model is "graph".
RunSpec makeRunSpec(const ClientSettings& settings, const Datasets& data,
                    const UserModel* userModel = nullptr);
// The number of samples of the largest batches of training and evaluation: a set may be smaller
// than a configured batch.
std::uint32_t trainBatchOf(const ClientSettings& settings, const Datasets& data);
std::uint32_t evalBatchOf(const ClientSettings& settings, const Datasets& data);
// Sets RunSpec::codecLevels and watchEvery: whether the quality of the codecs is checked. Without a
// codec that has levels, there is nothing to check.
void useCodecLevels(const ClientSettings& settings, RunSpec& spec);
// Whether the exported model is divided at more cuts than the run has: see dividedAt().
bool isDivided(const ClientSettings& settings, const UserModel* userModel);
// The number of servers of this body, and the largest of these numbers.
std::uint32_t replicasOf(const ClientSettings& settings, std::size_t body);
std::uint32_t maxReplicasOf(const ClientSettings& settings);
// The cuts between several bodies: all of `cuts` except the first and the last one.
std::vector<int> innerCutsOf(const std::vector<int>& cuts);
// The run specs of the bodies. `whole`: from makeRunSpec(), with the number of micro-batches in
// flight that the client uses.
std::vector<RunSpec> bodyRunSpecs(const RunSpec& whole, const ClientSettings& settings,
                                  const Dataset& train, const UserModel* userModel = nullptr);

// In a relay: the epochs of each member, and of its turns.
TurnLength turnLengthOf(const ClientSettings& settings);
// `samples`: of the training data, of all members of a cohort together; in a relay, of this one.
std::uint64_t stepsPerEpoch(const ClientSettings& settings, std::uint32_t samples);
// The learning rate's options with the run's number of steps.
LearningRateOptions learningRateOptions(const ClientSettings& settings, std::uint32_t samples);
// The number of steps in the run: the steps of all epochs, but at most maxSteps.
std::uint64_t totalSteps(const ClientSettings& settings, std::uint32_t samples);

}  // namespace cleave
