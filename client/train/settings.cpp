#include "client/train/settings.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "client/data/loader.h"
#include "client/train/codec_choice.h"
#include "common/engine/schedule.h"
#include "common/run/config_errors.h"
#include "common/run/device.h"
#include "common/run/plan.h"
#include "common/run/run_folder.h"
#include "compression/registry.h"

namespace cleave {
namespace {

constexpr const char* kDefaultCodec = "auto";
constexpr std::int64_t kMany = std::int64_t{1} << 31;

DataSettings readData(Config& config, std::uint64_t seed) {
  std::vector<std::string> formats;
  for (const DataFormatRow& row : dataFormatTable()) formats.emplace_back(row.name);
  DataSettings data;
  data.format = config.text("data.format", std::nullopt, formats);
  data.open = findDataFormat(data.format).read(config, seed);
  data.holdout = static_cast<std::uint32_t>(config.integer("data.holdout", 0, kMany, 0));
  return data;
}

void readModel(Config& config, ClientSettings& settings) {
  settings.model = config.text("model.name");
  checkAt(config, "model.name", [&] { findModel(settings.model); });
  for (const std::string& key : config.keys("model")) {
    if (key == "name" || key == "cuts") continue;
    settings.modelParameters[key] = config.text("model." + key);
  }
  if (!config.has("model.cuts")) return;
  const auto cuts = config.integers("model.cuts", 0, 1 << 16);
  if (cuts.size() != 2) {
    throw UsageError(
        "bad-cuts",
        config.where("model.cuts") + ": model.cuts has " + std::to_string(cuts.size()) + " values",
        "give two block positions, such as [3, 9]");
  }
  settings.cuts = Cuts{static_cast<int>(cuts[0]), static_cast<int>(cuts[1])};
}

// 0 or 1, as `cleave-client optimizers` lists it; also true or false.
double readSwitch(Config& config, const std::string& path) {
  const std::string text = config.text(path, std::nullopt, {"true", "false", "1", "0"});
  return text == "true" || text == "1" ? 1 : 0;
}

void readTraining(Config& config, ClientSettings& settings) {
  settings.batch =
      static_cast<std::uint32_t>(config.integer("train.batch", 1, 1 << 20, settings.batch));
  settings.microBatches = static_cast<std::uint32_t>(
      config.integer("train.micro_batches", 1, 1 << 16, settings.microBatches));
  if (settings.microBatches > settings.batch) {
    throw UsageError("bad-config",
                     config.where("train.micro_batches") + ": " +
                         std::to_string(settings.microBatches) +
                         " micro-batches cannot be made of a batch of " +
                         std::to_string(settings.batch) + " samples",
                     "set train.micro_batches in 1…" + std::to_string(settings.batch));
  }
  settings.schedule = config.text("train.schedule", "priority");
  settings.inFlight = static_cast<std::uint32_t>(config.integer("train.in_flight", 0, 1 << 16, 0));
  checkAt(config, "train.schedule", [&] { findSchedule(settings.schedule); });
  checkAt(config, "train.in_flight", [&] {
    resolveInFlight(findSchedule(settings.schedule), settings.inFlight, settings.microBatches);
  });
  settings.epochs = static_cast<std::uint64_t>(config.integer("train.epochs", 1, 1 << 20, 1));
  settings.maxSteps = static_cast<std::uint64_t>(config.integer("train.max_steps", 0, kMany, 0));

  config.expand("train.optimizer", "name");
  settings.optimizer.name = config.text("train.optimizer.name", "sgd");
  for (const std::string& key : config.keys("train.optimizer")) {
    if (key == "name") continue;
    const std::string path = "train.optimizer." + key;
    settings.optimizer.parameters[key] =
        key == "nesterov" ? readSwitch(config, path) : config.number(path, -1e6, 1e6);
    // Checked one by one, so that an error names its own key.
    OptimizerSpec alone{settings.optimizer.name, {}};
    if (key != "nesterov") alone.parameters[key] = settings.optimizer.parameters[key];
    checkAt(config, path, [&] { checkOptimizer(alone); });
  }
  checkAt(config, "train.optimizer.name", [&] { checkOptimizer(settings.optimizer); });

  config.expand("train.learning_rate", "peak");
  LearningRateOptions& rate = settings.learningRate;
  rate.schedule = config.text("train.learning_rate.schedule", rate.schedule);
  checkAt(config, "train.learning_rate.schedule", [&] { learningRate(rate, 1); });
  rate.peak = config.number("train.learning_rate.peak", 0, 1e6, rate.peak);
  settings.warmupEpochs = config.number("train.learning_rate.warmup_epochs", 0, 1e6, 0);
  if (rate.schedule != "constant") rate.end = config.number("train.learning_rate.end", 0, 1e6, 0);
  if (rate.schedule == "polynomial") {
    rate.power = config.number("train.learning_rate.power", 0.01, 100, rate.power);
  }
  settings.clipNorm = config.number("train.clip_norm", 0, 1e12, 0);
  settings.evalBatch =
      static_cast<std::uint32_t>(config.integer("eval.batch", 1, 1 << 20, settings.evalBatch));
  settings.evalEvery =
      static_cast<std::uint32_t>(config.integer("eval.every", 0, 1 << 20, settings.evalEvery));
}

void readCodecs(Config& config, ClientSettings& settings) {
  const bool isMap = config.isMap("codec");
  for (const Flow each : Place{}.flows()) {
    const std::string flow = flowName(each);
    const std::string path = isMap ? "codec." + flow : "codec";
    std::string spec = config.text(path, kDefaultCodec);
    checkAt(config, path, [&] {
      if (const auto choices = autoCodecs(spec)) {
        settings.autoCodecs[flow] = *choices;
        spec = kAutoStart;
      } else {
        makeCodec(spec);
      }
    });
    settings.codecs[flow] = spec;
  }
}

void readWait(Config& config, StageWait& wait) {
  const auto read = [&](const char* key, std::optional<double>& value) {
    const std::string path = std::string("wait.") + key;
    if (config.has(path)) value = config.number(path, 0, kMostWait);
  };
  read("F1", wait.f1);
  read("T3", wait.t3);
  read("B1", wait.b1);
  read("F2", wait.f2);
  read("B2", wait.b2);
  const auto refuseLone = [&](const char* forward, const char* backward) {
    throw UsageError("bad-wait",
                     config.where(std::string("wait.") + forward) + ": wait." + forward +
                         " is set without wait." + backward +
                         ": if the forward action only waits, the backward action has no input",
                     std::string("set wait.") + backward + " too");
  };
  if (wait.f1 && !wait.b1) refuseLone("F1", "B1");
  if (wait.f2 && !wait.b2) refuseLone("F2", "B2");
}

}  // namespace

ClientSettings readClientSettings(Config& config) {
  ClientSettings settings;
  refuseKeysOf(config, "cleave-server serve", {"listen", "models", "limits", "access", "store"});
  settings.name = config.text("run.name", "run");
  settings.seed = static_cast<std::uint64_t>(config.integer("run.seed", 0, kMany, 1));
  readModel(config, settings);
  config.expand("weights", "file");
  if (config.has("weights")) {
    if (config.keys("weights").empty()) {
      throw UsageError(
          "bad-config", config.where("weights") + ": weights names no file",
          "set weights.file=FILE, or omit weights to initialize the model from the seed");
    }
    settings.weightsFile = config.text("weights.file");
    settings.weightsExcept = config.texts("weights.except", std::vector<std::string>{});
  }
  settings.data = readData(config, settings.seed);
  readTraining(config, settings);
  readCodecs(config, settings);
  settings.rawNonFinite = config.text("non_finite", "fail", {"fail", "raw"}) == "raw";
  settings.device = config.text("device", settings.device);
  checkAt(config, "device", [&] { checkDeviceName(settings.device); });
  settings.clientThreads = static_cast<int>(config.integer("threads.client", 0, 1024, 0));
  settings.serverThreads = static_cast<int>(config.integer("threads.server", 0, 1024, 0));
  readWait(config, settings.wait);
  settings.errorEvery = static_cast<std::uint32_t>(
      config.integer("metrics.error_every", 0, kMany, settings.errorEvery));
  settings.rotateBytes = readRotateBytes(config);
  settings.metrics = readMetricsSettings(config);
  settings.retrySeconds = config.number("connect.retry_seconds", 0, 1e6, settings.retrySeconds);
  settings.reconnectSeconds =
      config.number("connect.reconnect_seconds", 0, 1e6, settings.reconnectSeconds);
  settings.tls = readTlsSettings(config);
  settings.probeFirst = config.boolean("probe.first", settings.probeFirst);
  settings.probeSeconds = config.number("probe.seconds", 0.1, 300, settings.probeSeconds);
  config.refuseUnknown();
  settings.resolved = config.resolved();
  return settings;
}

Datasets openDatasets(const DataSettings& settings) {
  Datasets data;
  data.train = settings.open(DataSplit::train);
  if (settings.holdout == 0) data.test = settings.open(DataSplit::test);
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

wire::RunSpec makeRunSpec(const ClientSettings& settings, const Dataset& train) {
  ModelSpec model{settings.model, settings.modelParameters, train.sampleShape(), train.classes()};
  const ModelRow& row = findModel(settings.model);
  const Cuts cuts = settings.cuts.value_or([&] {
    const auto [cut0, cut1] = row.defaultCuts(model);
    return Cuts{cut0, cut1};
  }());

  wire::RunSpec spec;
  spec.set_model(settings.model);
  for (const auto& [key, value] : settings.modelParameters)
    (*spec.mutable_model_parameters())[key] = value;
  checkCuts(row.blocks(model), cuts);
  spec.set_cut0(static_cast<std::uint32_t>(cuts.cut0));
  spec.set_cut1(static_cast<std::uint32_t>(cuts.cut1));
  for (const std::int64_t dim : model.sampleShape)
    spec.add_sample_shape(static_cast<std::uint64_t>(dim));
  spec.set_classes(static_cast<std::uint32_t>(model.classes));
  spec.set_max_batch(std::max(settings.batch, settings.evalBatch));
  spec.set_micro_batches(settings.microBatches);
  spec.set_in_flight(settings.inFlight);
  spec.set_schedule(settings.schedule);
  for (const auto& [flow, codec] : settings.codecs) (*spec.mutable_codecs())[flow] = codec;
  spec.mutable_optimizer()->set_name(settings.optimizer.name);
  for (const auto& [key, value] : settings.optimizer.parameters) {
    (*spec.mutable_optimizer()->mutable_parameters())[key] = value;
  }
  spec.set_seed(settings.seed);
  spec.set_precision("f32");
  if (settings.wait.f2) spec.mutable_wait()->set_f2(*settings.wait.f2);
  if (settings.wait.b2) spec.mutable_wait()->set_b2(*settings.wait.b2);
  spec.set_threads(static_cast<std::uint32_t>(settings.serverThreads));
  spec.set_steps_per_epoch(stepsPerEpoch(settings, train));
  spec.set_raw_non_finite(settings.rawNonFinite);
  spec.set_initial_weights(!settings.weightsFile.empty());
  return spec;
}

}  // namespace cleave
