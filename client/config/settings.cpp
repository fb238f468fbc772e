#include "client/config/settings.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <set>
#include <system_error>
#include <utility>

#include "client/config/user_model.h"
#include "client/data/files/csv_file.h"
#include "client/data/samples/loader.h"
#include "client/data/samples/skip.h"
#include "common/core/names.h"
#include "compression/registry.h"

namespace cleave {

namespace {

void checkInputPaths(const std::vector<std::string>& inputs) {
  for (const std::string& path : inputs) {
    std::error_code error;
    if (std::filesystem::exists(path, error)) continue;
    throw DataMissing(path + " cannot be read: " +
                          (error ? error.message() : std::string("there is no such file")),
                      "correct the path after --input");
  }
}

// Names the key of a path that does not exist. Null: the split is damaged, which has been reported.
std::unique_ptr<Dataset> openSplit(const DataFormatRow& format, const DataFormatKeys& keys,
                                   DataSplit split) {
  try {
    std::unique_ptr<Dataset> opened;
    orReport(damageOf(keys, split), pathOf(keys, split),
             [&] { opened = format.open(keys, split); });
    return opened;
  } catch (const DataMissing& error) {
    const std::string key = keyOfPath(keys, error.what());
    if (key.empty()) throw;
    throw UsageError(error, error.what(), error.hint() + "; its key is " + key).about(key);
  }
}

// Checks the form of a test set's rows, which is all that can be checked without the columns and
// classes of the training set.
void checkTestRows(const DataFormatKeys& keys) {
  const DamageReport report = damageOf(keys, DataSplit::test);
  if (!isTablePath(keys.testFile)) return;
  orReport(report, keys.testFile, [&] {
    CsvFile(keys.testFile, report).forEachRow([](std::uint64_t, std::span<const std::string_view>) {
    });
  });
}

void chooseSubset(const DataSettings& settings, Datasets& data) {
  const DataSubset& subset = settings.subset;
  const std::uint64_t seed = settings.keys.dataSeed;
  if (subset.folds > 0) {
    const std::shared_ptr<const Dataset> whole = data.train;
    const SamplesByClass classes = samplesByClass(*whole, "folds");
    FoldSplit split = splitFolds(*whole, classes, subset.folds, subset.fold, seed);
    data.train = pickSamples(whole, std::move(split.train));
    data.test = pickSamples(whole, std::move(split.evaluation));
  }
  if (subset.perClass > 0) {
    const SamplesByClass classes = samplesByClass(*data.train, "train.per_class");
    data.train =
        pickSamples(data.train, samplesPerClass(*data.train, classes, subset.perClass, seed));
  }
  if (subset.isBalanced) {
    data.balanced = std::make_shared<const SamplesByClass>(samplesByClass(*data.train, "sampling"));
  }
}

// Whether the samples differ only in their size, which data.resize would make equal.
bool needResize(const DataSettings& settings, const Dataset& train, const Dataset& test) {
  const std::vector<KeyText> keys = findDataFormat(settings.format).keys().texts();
  const bool canResize = std::any_of(keys.begin(), keys.end(),
                                     [](const KeyText& key) { return key.name == "data.resize"; });
  const ImageOptions& image = settings.keys.image;
  return canResize && image.resize == 0 && image.crop == 0 &&
         train.arrays().front().shape.size() == 3 && test.arrays().front().shape.size() == 3;
}

void checkSameArrays(const DataSettings& settings, const Dataset& train, const Dataset& test) {
  if (train.arrays() == test.arrays()) return;
  if (needResize(settings, train, test)) {
    const auto sizeOf = [](const Dataset& data) {
      const std::vector<std::int64_t> shape = data.arrays().front().shape;
      return std::to_string(shape[2]) + " x " + std::to_string(shape[1]) + " pixels";
    };
    throwDifferentSizes("a training image has " + sizeOf(train) + ", but a test image has " +
                        sizeOf(test));
  }
  const auto textOf = [](const Dataset& each) {
    std::string text;
    for (const SampleArray& array : each.arrays()) {
      text += (text.empty() ? "" : ", ") + toString(array);
    }
    return text;
  };
  throw DataError(
      "data-damaged",
      "a training sample has " + textOf(train) + ", but a test sample has " + textOf(test),
      "give training and test files of the same dataset");
}

}  // namespace

Datasets openDatasets(const DataSettings& settings) {
  Datasets data;
  const DataFormatRow& format = findDataFormat(settings.format);
  const bool keepsOrder = settings.holdout > 0 && settings.holdoutFrom == "end";
  DataFormatKeys keys = settings.keys;
  keys.isShuffled = !settings.hasTestSet() && !keepsOrder;
  const auto open = [&](DataSplit split) { return openSplit(format, keys, split); };
  data.train = open(DataSplit::train);
  if (!data.train) {
    checkTestRows(keys);
    return data;
  }
  keys.learned = data.train->learned();
  if (settings.hasTestSet()) data.test = open(DataSplit::test);
  if (settings.holdout > 0) {
    const std::uint32_t size = data.train->size();
    if (settings.holdout >= size) {
      throw UsageError("bad-config",
                       std::to_string(settings.holdout) + " samples cannot be held out of " +
                           std::to_string(size) + " training samples",
                       "set data.holdout to a smaller number")
          .about("data.holdout");
    }
    std::shared_ptr<const Dataset> whole = data.train;
    if (!keepsOrder && !format.shuffles) whole = pickSamples(whole, holdoutOrder(size));
    data.train = sliceDataset(whole, 0, size - settings.holdout);
    data.test = sliceDataset(whole, size - settings.holdout, settings.holdout);
  }
  chooseSubset(settings, data);
  data.train = skipDamaged(data.train, settings.skip);
  if (!data.test) return data;
  data.test = skipDamaged(data.test, settings.skip);
  orReport(damageOf(keys, DataSplit::test), pathOf(keys, DataSplit::test),
           [&] { checkSameArrays(settings, *data.train, *data.test); });
  return data;
}

Datasets openForInference(const DataSettings& settings, const nlohmann::json& learned,
                          const std::vector<std::string>& inputs, const DataDigest& trained) {
  checkInputPaths(inputs);
  const auto& format = findDataFormat(settings.format);
  Datasets data;
  if (inputs.empty() && !settings.hasTestSet()) {
    const Datasets whole = openDatasets(settings);
    std::string change = changeSince(trained, digestOf(*whole.train));
    if (!isSameLearned(learned, whole.train->learned()))
      change = "has other classes or column statistics than";
    if (!change.empty()) {
      throw UsageError("other-data",
                       "the training set " + change +
                           " when the model was trained, so its held-out samples may be others too",
                       "restore the training set, or evaluate on a test set: --set data.holdout=0 "
                       "--set data.folds=0, and --set with the test set's key");
    }
    data.test = whole.test;
  } else {
    DataFormatKeys keys = settings.keys;
    keys.learned = learned;
    keys.inputs = inputs;
    const DataSplit split = inputs.empty() ? DataSplit::test : DataSplit::input;
    try {
      data.test = skipDamaged(format.open(keys, split), settings.skip);
    } catch (const nlohmann::json::exception&) {
      throw UsageError(
          "no-description",
          "the model's description lacks the values needed to read data of the format " +
              settings.format,
          "use a model that was trained with this data.format");
    }
  }
  data.train = data.test;
  return data;
}

std::vector<int> ClientSettings::cutPositions() const {
  if (cutNames.empty()) return cuts;
  std::vector<int> positions(cutNames.size());
  std::iota(positions.begin(), positions.end(), 1);
  return positions;
}

std::string ClientSettings::mainMetric() const {
  return scores.metrics.empty() ? "loss" : scores.metrics.front();
}

std::uint64_t stepsPerEpoch(const ClientSettings& settings, std::uint32_t samples) {
  return Loader::batches(samples, settings.batch);
}

LearningRateOptions learningRateOptions(const ClientSettings& settings, std::uint32_t samples) {
  LearningRateOptions options = settings.learningRate;
  options.totalSteps = totalSteps(settings, samples);
  options.warmupSteps = static_cast<std::uint64_t>(
      settings.warmupEpochs * static_cast<double>(stepsPerEpoch(settings, samples)));
  return options;
}

std::uint64_t totalSteps(const ClientSettings& settings, std::uint32_t samples) {
  const std::uint64_t all = settings.epochs * stepsPerEpoch(settings, samples);
  return settings.maxSteps == 0 ? all : std::min(all, settings.maxSteps);
}

namespace {

// The name of a parameter, or the pattern for all parameters of a module, that is probably meant;
// otherwise the pattern for all names that contain the text; empty if there are none.
std::string nearestPattern(const std::string& pattern, const std::vector<std::string>& names) {
  std::set<std::string> candidates(names.begin(), names.end());
  for (const std::string& name : names) {
    for (std::size_t dot = name.find('.'); dot != std::string::npos;
         dot = name.find('.', dot + 1)) {
      candidates.insert(name.substr(0, dot + 1) + "*");
    }
  }
  const std::string nearest = nearestName(pattern, {candidates.begin(), candidates.end()});
  if (!nearest.empty()) return nearest;
  const std::string anywhere = "*" + pattern + "*";
  const bool isPart = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return matchesPattern(name, anywhere);
  });
  return isPart ? anywhere : "";
}

// Throws UsageError "unknown-parameter" if a pattern of train.freeze or train.groups matches no
// parameter.
void checkPatternsMatch(const ClientSettings& settings, const std::vector<BlockSpec>& blocks) {
  std::vector<std::string> names;
  for (const BlockSpec& block : blocks) {
    for (const ParameterSpec& tensor : block.tensors) {
      if (!tensor.isBuffer) names.push_back(tensor.name);
    }
  }
  const auto check = [&](const std::string& key, const std::string& pattern) {
    const bool isMatched = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return matchesPattern(name, pattern);
    });
    if (isMatched) return;
    const std::string meant = nearestPattern(pattern, names);
    throw UsageError("unknown-parameter",
                     "no parameter of the model matches '" + pattern + "'" +
                         (meant.empty() ? "" : "; did you mean " + meant + "?"),
                     "a pattern must match the whole name of a parameter, such as " +
                         (names.empty() ? "" : names.front()) + "; * matches any text")
        .about(key);
  };
  for (const std::string& pattern : settings.freeze) {
    check("train.freeze", pattern.starts_with('!') ? pattern.substr(1) : pattern);
  }
  for (const ParameterGroup& group : settings.optimizer.groups) check("train.groups", group.match);
}

ModelSpec modelFor(const ClientSettings& settings, const Dataset& train,
                   const UserModel* userModel) {
  ModelSpec model = settings.model;
  if (userModel != nullptr) {
    model.graphBlocks = userModel->blocks();
    return model;
  }
  const std::vector<SampleArray> arrays = train.arrays();
  const bool hasInput = arrays.size() == 2 && arrays[0].dtype == DType::f32;
  if (hasInput && train.classes() == 0 && arrays[1].dtype == DType::i64) {
    throw UsageError("bad-sample-shape",
                     "the model " + settings.model.name +
                         " needs the number of classes, which the data format " +
                         settings.data.format + " does not state",
                     "set data.classes to the number of classes")
        .about("model.name");
  }
  if (!hasInput || train.classes() == 0) {
    throw UsageError("bad-sample-shape",
                     "the model " + settings.model.name +
                         " takes one array of floats, and classes as its target",
                     "use model.name: graph with your own model, or another data.format")
        .about("model.name");
  }
  model.sampleShape = arrays[0].shape;
  model.classes = train.classes();
  return model;
}

std::vector<int> cutsOf(const ClientSettings& settings, const ModelSpec& model) {
  const std::vector<int> positions = settings.cutPositions();
  if (!positions.empty()) return positions;
  const auto [cut0, cut1] = findModel(settings.model.name).defaultCuts(model);
  return {cut0, cut1};
}

// The configured codecs of the flows at this place.
ParsedCodecs codecsAt(const Place& place, const ClientSettings& settings) {
  ParsedCodecs codecs;
  for (const auto& [name, codec] : settings.codecs) {
    if (place.contains(*flowFromName(name))) codecs[name] = codec;
  }
  return codecs;
}

// The inserts at the two cuts of a body.
std::vector<InsertSpec> insertsAt(const ClientSettings& settings, const Cuts& cuts) {
  std::vector<InsertSpec> inserts;
  for (const InsertSpec& insert : settings.inserts) {
    const auto cut = static_cast<int>(insert.cut);
    if (cut >= cuts.number0 && cut <= cuts.number1) inserts.push_back(insert);
  }
  return inserts;
}

StageOptions stageFor(const ClientSettings& settings, const ModelSpec& model, const Cuts& cuts) {
  StageOptions stage{settings};
  stage.model = model;
  stage.cuts = cuts;
  return stage;
}

// The whole model with all bodies joined into one.
StageOptions wholeStageFor(const ClientSettings& settings, const ModelSpec& model,
                           const std::vector<int>& cuts) {
  StageOptions stage = stageFor(
      settings, model, {cuts.front(), cuts.back(), 0, static_cast<int>(settings.bodies())});
  stage.innerCuts = innerCutsOf(cuts);
  return stage;
}

// Sets what depends on the position of the body. `blocks`: the whole model's.
void setBody(RunSpec& spec, StageOptions stage, const std::vector<BlockSpec>& blocks,
             const ClientSettings& settings) {
  spec.cut0 = static_cast<std::uint32_t>(stage.cuts.cut0);
  spec.cut1 = static_cast<std::uint32_t>(stage.cuts.cut1);
  spec.cutNumber = static_cast<std::uint32_t>(stage.cuts.number0);
  spec.inserts = stage.inserts;
  spec.headIsFrozen = trainedCount(blocks, 0, stage.cuts.cut0) == 0;
  stage.headIsFrozen = spec.headIsFrozen;
  spec.codecs = codecsAt(placeOfBody(blocksFor(stage), stage.cuts), settings);
}

// Whether a codec of the run keeps the samples of the training data. Throws UsageError if the
// samples differ from epoch to epoch.
bool keepsSamples(const ClientSettings& settings) {
  for (const auto& [flow, codec] : settings.codecs) {
    if (!codec->keepsSamples()) continue;
    if (!isAugmented(settings.data.keys.image)) return true;
    throw UsageError("bad-codec-spec",
                     "codec " + codec.text + " of " + flow +
                         " sends only the changes of a sample since the last epoch, but "
                         "data.augment changes the whole sample in each epoch",
                     "remove data.augment: --set 'data.augment={}', or use another codec")
        .about("codec");
  }
  return false;
}

}  // namespace

void useCodecLevels(const ClientSettings& settings, RunSpec& spec) {
  spec.codecLevels = settings.quality.every > 0 &&
                     std::any_of(settings.codecs.begin(), settings.codecs.end(),
                                 [](const auto& flow) { return hasRawFormat(*flow.second); });
  spec.watchEvery = spec.codecLevels ? settings.quality.every : 0;
}

TurnLength turnLengthOf(const ClientSettings& settings) {
  return {settings.epochs, settings.turnEpochs};
}

std::uint32_t trainBatchOf(const ClientSettings& settings, const Datasets& data) {
  if (settings.cohort.exists()) return settings.batch;  // the others' samples are not known yet
  return std::min(settings.batch, data.train->size());
}

std::uint32_t evalBatchOf(const ClientSettings& settings, const Datasets& data) {
  if (settings.cohort.exists()) return settings.evalBatch;
  return std::min(settings.evalBatch, data.test->size());
}

RunSpec makeRunSpec(const ClientSettings& settings, const Datasets& data,
                    const UserModel* userModel) {
  const Dataset& train = *data.train;
  const ModelSpec model = modelFor(settings, train, userModel);
  const std::vector<int> cuts = cutsOf(settings, model);
  const StageOptions stage = wholeStageFor(settings, model, cuts);
  const std::vector<BlockSpec> blocks = blocksFor(stage);
  checkPatternsMatch(settings, blocks);
  if (trainedCount(blocks, 0, static_cast<int>(blocks.size())) == 0) {
    throw UsageError("nothing-to-train", "no parameter of the model is trained",
                     "remove a pattern from train.freeze, or exclude parameters with !PATTERN")
        .about("train.freeze");
  }

  if (settings.staleness > 0 && settings.scalesLoss()) {
    throw UsageError(
        "bad-staleness",
        "train.staleness is not supported with the loss scaling of fp16, which follows "
        "the gradients of the step before",
        "set precision to bf16, or train.staleness to 0");
  }
  for (std::size_t n = 0; n < settings.inserts.size() && settings.scalesLoss(); ++n) {
    const auto& parameters = settings.inserts[n].parameters;
    const auto correction = parameters.find("correction");
    if (correction == parameters.end() || correction->second == 0) continue;
    throw badInsert("the correction of an insert is not supported with the loss scaling of fp16",
                    "set precision to bf16, or precision.scale_loss to false",
                    fmt::format("insert[{}].correction", n));
  }

  RunSpec spec(settings);
  spec.bodies = static_cast<std::uint32_t>(settings.bodies());
  // Of several bodies, each one's spec has its own number.
  spec.replicas = spec.bodies == 1 ? replicasOf(settings, 0) : 1;
  spec.model = model;
  spec.model.graphBlocks = nullptr;
  setBody(spec, stage, blocks, settings);
  // Each micro-batch has at least one sample.
  spec.trainBatch = std::max(trainBatchOf(settings, data), settings.microBatches);
  spec.maxBatch = std::max(spec.trainBatch, evalBatchOf(settings, data));
  if (settings.cohort.exists()) {
    spec.cohort.batch = settings.batch;
    spec.cohort.evalBatch = settings.evalBatch;
  } else {  // that of a cohort is known when all members are
    spec.stepsPerEpoch = stepsPerEpoch(settings, train.size());
  }
  if (keepsSamples(settings)) spec.trainSamples = train.size();
  // With loss scaling, gradients that are not finite are expected: a step with such gradients is
  // skipped.
  spec.rawNonFinite |= settings.scalesLoss();
  useCodecLevels(settings, spec);
  spec.initialWeights = userModel != nullptr || !settings.weights.file.empty();
  if (userModel != nullptr) {
    spec.graph = userModel->packedBodies().front();
    spec.graphDigest = userModel->digest();
  }
  return spec;
}

bool isDivided(const ClientSettings& settings, const UserModel* userModel) {
  return userModel != nullptr && settings.cutNames.empty();
}

std::uint32_t replicasOf(const ClientSettings& settings, std::size_t body) {
  return settings.bodyReplicas.empty() ? 1 : settings.bodyReplicas.at(body);
}

std::uint32_t maxReplicasOf(const ClientSettings& settings) {
  std::uint32_t max = 1;
  for (const std::uint32_t replicas : settings.bodyReplicas) max = std::max(max, replicas);
  return max;
}

std::vector<int> innerCutsOf(const std::vector<int>& cuts) {
  if (cuts.size() <= 2) return {};
  return {cuts.begin() + 1, cuts.end() - 1};
}

std::vector<RunSpec> bodyRunSpecs(const RunSpec& whole, const ClientSettings& settings,
                                  const Dataset& train, const UserModel* userModel) {
  if (settings.bodies() == 1) return {whole};
  const ModelSpec model = modelFor(settings, train, userModel);
  const std::vector<int> cuts = cutsOf(settings, model);
  const std::vector<BlockSpec> blocks = blocksFor(wholeStageFor(settings, model, cuts));
  std::vector<RunSpec> specs;
  for (std::size_t b = 0; b + 1 < cuts.size(); ++b) {
    RunSpec& spec = specs.emplace_back(whole);
    const auto number = static_cast<int>(b);
    StageOptions stage = stageFor(settings, model, {cuts[b], cuts[b + 1], number, number + 1});
    stage.inserts = insertsAt(settings, stage.cuts);
    setBody(spec, stage, blocks, settings);
    spec.replicas = replicasOf(settings, b);
    if (userModel == nullptr || isDivided(settings, userModel)) continue;
    spec.graph = userModel->packedBodies()[b];
    spec.cut0 = 1;  // the server's graph has an empty head, this body, and an empty tail
    spec.cut1 = 2;
  }
  return specs;
}

}  // namespace cleave
