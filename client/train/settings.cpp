#include "client/train/settings.h"

#include <algorithm>
#include <utility>

#include "client/data/loader.h"
#include "client/train/user_model.h"

namespace cleave {

Datasets openDatasets(const DataSettings& settings) {
  Datasets data;
  const auto open = [&](DataSplit split) {
    return findDataFormat(settings.format).open(settings.keys, split);
  };
  data.train = open(DataSplit::train);
  if (settings.holdout == 0) data.test = open(DataSplit::test);
  if (settings.holdout > 0) {
    const std::uint32_t size = data.train->size();
    if (settings.holdout >= size) {
      throw UsageError("bad-config",
                       std::to_string(settings.holdout) + " samples cannot be held out of " +
                           std::to_string(size) + " training samples",
                       "hold out fewer than that");
    }
    const std::shared_ptr<const Dataset> whole = data.train;
    data.train = sliceDataset(whole, 0, size - settings.holdout);
    data.test = sliceDataset(whole, size - settings.holdout, settings.holdout);
  }
  if (data.train->sampleShape() != data.test->sampleShape()) {
    throw UsageError("data-damaged", "training and test samples have different shapes",
                     "give files of the same data set");
  }
  return data;
}

std::uint64_t stepsPerEpoch(const ClientSettings& settings, const Dataset& train) {
  return Loader::batches(train, settings.batch);
}

LearningRateOptions learningRateOptions(const ClientSettings& settings, const Dataset& train) {
  LearningRateOptions options = settings.learningRate;
  options.totalSteps = totalSteps(settings, train);
  options.warmupSteps = static_cast<std::uint64_t>(
      settings.warmupEpochs * static_cast<double>(stepsPerEpoch(settings, train)));
  return options;
}

std::uint64_t totalSteps(const ClientSettings& settings, const Dataset& train) {
  const std::uint64_t all = settings.epochs * stepsPerEpoch(settings, train);
  return settings.maxSteps == 0 ? all : std::min(all, settings.maxSteps);
}

RunSpec makeRunSpec(const ClientSettings& settings, const Dataset& train,
                    const UserModel* userModel) {
  ModelSpec model{settings.model, settings.modelParameters, train.sampleShape(), train.classes()};
  if (userModel != nullptr) model.graphBlocks = userModel->blocks();
  const ModelRow& row = findModel(settings.model);
  const Cuts cuts = settings.cuts.value_or([&] {
    const auto [cut0, cut1] = row.defaultCuts(model);
    return Cuts{cut0, cut1};
  }());
  checkCuts(row.blocks(model), cuts);

  RunSpec spec;
  spec.model = settings.model;
  spec.modelParameters = settings.modelParameters;
  spec.cut0 = static_cast<std::uint32_t>(cuts.cut0);
  spec.cut1 = static_cast<std::uint32_t>(cuts.cut1);
  spec.sampleShape.assign(model.sampleShape.begin(), model.sampleShape.end());
  spec.classes = static_cast<std::uint32_t>(model.classes);
  spec.maxBatch = std::max(settings.batch, settings.evalBatch);
  spec.microBatches = settings.microBatches;
  spec.inFlight = settings.inFlight;
  spec.schedule = settings.schedule;
  spec.codecs = settings.codecs;
  spec.optimizer = settings.optimizer;
  spec.seed = settings.seed;
  spec.waitF2 = settings.wait.f2;
  spec.waitB2 = settings.wait.b2;
  spec.threads = static_cast<std::uint32_t>(settings.serverThreads);
  spec.stepsPerEpoch = stepsPerEpoch(settings, train);
  spec.rawNonFinite = settings.rawNonFinite;
  spec.initialWeights = userModel != nullptr || !settings.weightsFile.empty();
  if (userModel != nullptr) {
    spec.graph = userModel->packedBody();
    spec.graphDigest = userModel->digest();
  }
  return spec;
}

}  // namespace cleave
