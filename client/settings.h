// The client's configuration: all of the experiment.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/data/dataset.h"
#include "client/learning_rate.h"
#include "common/core/config.h"
#include "common/model/stage.h"
#include "daemon/metrics.h"
#include "daemon/tls_settings.h"
#include "proto/wire.pb.h"

namespace cleave {

struct DataSettings {
  std::string format;  // "idx", "cifar10", "cifar100", "synthetic"
  IdxOptions train, test;
  CifarOptions cifarTrain, cifarTest;
  SyntheticOptions syntheticTrain, syntheticTest;
  std::uint32_t holdout =
      0;  // the last so many training samples are evaluated on, instead of the test set
};

struct ClientSettings {
  std::string name;
  std::uint64_t seed = 1;
  std::string model;
  std::map<std::string, std::string> modelParameters;
  std::optional<Cuts> cuts;
  std::string weightsFile;                 // safetensors to begin with; empty: from the seed
  std::vector<std::string> weightsExcept;  // blocks that begin anew all the same
  DataSettings data;
  std::uint32_t batch = 64;
  std::uint32_t microBatches = 4;
  std::uint32_t inFlight = 0;
  std::string schedule;
  std::uint64_t epochs = 1;
  std::uint64_t maxSteps = 0;  // 0: no limit
  OptimizerSpec optimizer;
  LearningRateOptions learningRate;  // without the steps, which depend on the data
  double warmupEpochs = 0;
  double clipNorm = 0;  // most that the gradients' global norm may be; 0: no limit
  std::uint32_t evalBatch = 256;
  std::uint32_t evalEvery = 1;                // epochs
  std::map<std::string, std::string> codecs;  // flow -> spec; of `auto`: kAutoStart
  // Flow -> what `auto` chooses among; flows with another codec are missing.
  std::map<std::string, std::vector<std::string>> autoCodecs;
  bool rawNonFinite = false;   // as TensorLinkOptions
  std::string device = "cpu";  // that head and tail compute on
  int clientThreads = 0;
  int serverThreads = 0;
  StageWait wait;
  std::uint32_t errorEvery = 100;
  std::size_t rotateBytes = 0;          // of the run's CSV files; 0: never
  std::optional<HttpSettings> metrics;  // where to offer them; nothing: nowhere
  double retrySeconds = 30;
  TlsSettings tls;          // towards a server that is given; one of our own is on loopback
  bool probeFirst = false;  // measure the link before training
  double probeSeconds = 5;  // about as long as that may take
  std::string resolved;     // as YAML
};

// Throws UsageError.
ClientSettings readClientSettings(Config& config);

struct Datasets {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> test;  // what is evaluated on
};
// Throws UsageError.
Datasets openDatasets(const DataSettings& settings);

// The run spec of these settings on that data.
wire::RunSpec makeRunSpec(const ClientSettings& settings, const Dataset& train);

std::uint64_t stepsPerEpoch(const ClientSettings& settings, const Dataset& train);
// The learning rate's options, with the run's steps.
LearningRateOptions learningRateOptions(const ClientSettings& settings, const Dataset& train);
// All steps of the run: epochs, unless maxSteps is less.
std::uint64_t totalSteps(const ClientSettings& settings, const Dataset& train);

}  // namespace cleave
