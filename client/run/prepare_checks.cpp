// Whether configuration, data, model and servers fit together, and what the user should know.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "client/config/setting_changes.h"
#include "client/run/prepare_parts.h"
#include "common/core/metric_titles.h"
#include "common/core/units.h"
#include "common/device/torch_errors.h"
#include "common/files/sealed.h"
#include "common/files/sha256.h"
#include "common/model/blocks.h"

namespace cleave {

void warnOfLargeBatch(PreparedRun& run) {
  const std::uint32_t size = run.data.train->size();
  if (run.settings.batch <= size || run.settings.cohort.exists()) return;
  run.warnings.push_back(
      fmt::format("train.batch is {}, but there are only {} training samples: each epoch is one "
                  "step of {} samples; lower train.batch",
                  run.settings.batch, size, size));
}

void warnOfEvaluation(PreparedRun& run) {
  const std::vector<std::string> drawn =
      withTorchErrors([&] { return run.userModel->drawnInEvaluation(); });
  if (drawn.empty()) return;
  run.warnings.push_back(fmt::format(
      "{} has no evaluation graph, so evaluations and predictions also draw the random numbers of "
      "{}{}, and may differ from PyTorch's model.eval(); export the model again with "
      "cleave_split.export",
      run.settings.modelFile, drawn.front(),
      drawn.size() == 1 ? ""
                        : fmt::format(" and {}", countText(drawn.size() - 1, "more operator"))));
}

void warnOfTarget(PreparedRun& run) {
  const Target& target = run.settings.target;
  if (!metricTitle(target.metric).isShare || target.value <= 1) return;
  run.warnings.push_back(fmt::format(
      "eval.target.value is {:g}, which {} never reaches, because it is at most 1: for {:g} %, set "
      "it to {:g}",
      target.value, target.metric, target.value, target.value / 100));
}

void warnOfInputs(PreparedRun& run) {
  if (parameterCount(run.plan.blocks, 0, run.plan.stage.cuts.cut0) > 0) return;
  run.warnings.emplace_back(
      "the head has no parameters, so the server receives the inputs themselves; to keep them on "
      "the client, move the first cut (model.cuts) behind a layer with parameters");
}

void warnOfBits(PreparedRun& run) {
  if (run.settings.deviceBits == "exact") return;
  run.warnings.emplace_back(
      "device_bits is fast: on a GPU, the resumed run does not have the bits of an undisturbed "
      "one");
}

// Batch norm uses the statistics of each micro-batch. With few samples, they are noise.
void warnOfSmallNorms(PreparedRun& run) {
  constexpr std::uint32_t kMinSamples = 8;
  if (!hasBatchNorm(run.plan.blocks)) return;
  const ClientSettings& settings = run.settings;
  const std::uint32_t size = run.data.train->size();
  const std::uint32_t batch = std::min(settings.batch, size);
  const std::uint32_t whole = Division::of(batch, settings.microBatches).smallest();
  const std::uint32_t smallest = minMicroBatch(settings, *run.data.train);
  if (smallest >= kMinSamples) return;
  if (whole >= kMinSamples) {
    run.warnings.push_back(fmt::format(
        "batch norm computes its statistics from each micro-batch, and the smallest of each "
        "epoch's last batch has only {}: choose a train.batch that divides {} samples with less "
        "rest, or lower train.micro_batches",
        countText(smallest, "sample"), size));
    return;
  }
  run.warnings.push_back(fmt::format("batch norm computes its statistics from each micro-batch, "
                                     "and the smallest has only {} (a "
                                     "batch of {} in {} micro-batches), which can ruin the model: "
                                     "set train.micro_batches to {}",
                                     countText(whole, "sample"), batch,
                                     Division::of(batch, settings.microBatches).count,
                                     std::max(1U, batch / kMinSamples)) +
                         (batch < kMinSamples ? ", and raise train.batch" : ""));
}

void checkTarget(const PreparedRun& run) {
  const SampleArray target = run.data.train->arrays().back();
  const Shape& output = run.plan.blocks.back().outputShape();
  const int classes = run.data.train->classes();
  const ScoreSpec& scores = run.settings.scores;
  checkLoss(scores.loss, output, target.dtype, target.shape);
  if (findLoss(scores.loss.name).target != TargetKind::classes) return;
  const auto& metrics = scores.metrics;
  if (output.back() != 2 && std::find(metrics.begin(), metrics.end(), "auroc") != metrics.end()) {
    throw UsageError(
        "bad-metric",
        fmt::format("the metric auroc is for two classes, but the model has {}", output.back()),
        "remove auroc from train.metrics")
        .about("train.metrics");
  }
  const std::size_t names = run.settings.data.classNames.size();
  if (names > 0 && names != static_cast<std::size_t>(output.back())) {
    throw UsageError("bad-class-names",
                     fmt::format("data.class_names has {} names, but the model has {} classes",
                                 names, output.back()),
                     "give one name per class, in the order of their numbers")
        .about("data.class_names");
  }
  for (const Dataset* data : {run.data.train.get(), run.data.test.get()}) {
    const std::int64_t max = data->arrays().back().maxValue;
    if (max < output.back()) continue;
    throw UsageError("bad-label",
                     fmt::format("the data has the label {}, but the model has {} classes, 0 to {}",
                                 max, output.back(), output.back() - 1),
                     "correct the data or data.target, or export a model with more classes");
  }
  if (classes == 0 || output.back() == classes) return;
  const std::vector<KeyText> keys = findDataFormat(run.settings.data.format).keys().texts();
  const bool isSet = std::any_of(keys.begin(), keys.end(),
                                 [](const KeyText& key) { return key.name == "data.classes"; });
  throw UsageError("bad-output",
                   fmt::format("the model returns {} per sample, but the data has {} classes",
                               toString(output), classes),
                   fmt::format("export a model that returns [samples, {}]{}", classes,
                               isSet ? ", or correct data.classes" : ""))
      .about("model.file");
}

void checkDetection(const PreparedRun& run) {
  const ClientSettings& settings = run.settings;
  if (!settings.detection.isOn) return;
  const auto refuse = [](const std::string& what, const std::string& key, const std::string& hint) {
    throw UsageError("bad-detection", what, hint + ", or --set privacy.detect=false").about(key);
  };
  if (run.plan.stage.headIsFrozen) {
    refuse("privacy.detect has nothing to check: no layer before the first cut is trained",
           "privacy.detect", "train the head");
  }
  if (settings.cohort.exists()) {
    refuse("privacy.detect cannot check a cohort's server", "cohort.id", "remove cohort");
  }
  if (run.bodies.size() > 1) {
    refuse("privacy.detect can check one server only, and this run has " +
               std::to_string(run.bodies.size()),
           "model.cuts", "use one server");
  }
  if (settings.staleness > 0) {
    refuse("privacy.detect needs steps that do not overlap", "train.staleness",
           "--set train.staleness=0");
  }
  if (settings.averageDecay > 0) {
    refuse(
        "privacy.detect needs the weights themselves, but with train.ema a server sends averages",
        "train.ema", "--set train.ema=0");
  }
  for (const BlockSpec& block : run.plan.blocks) {
    for (const ParameterSpec& row : block.tensors) {
      if (!row.tracked) continue;
      refuse("privacy.detect cannot compute a tracked insert, whose basis a server does not send",
             "insert", "use an insert of another kind");
    }
  }
}

void giveDefencesTheirKey(PreparedRun& run, const Config& config, Purpose purpose) {
  if (run.settings.defences.empty() || run.settings.defenceKeyFile.empty()) return;
  std::string secret = readSealKey(run.settings.defenceKeyFile);
  if (purpose == Purpose::inference) {
    std::random_device random;
    for (int n = 0; n < 8; ++n) secret += std::to_string(random()) + " ";
  } else {
    // Those that may change do not change what a step sends.
    for (const auto& [key, value] : valuesOf(config, run.settings)) {
      if (key != "privacy.key_file" && !mayChange(key)) secret += key + "=" + value + "\n";
    }
    secret += run.trainDigest.sha256 + run.trainDigest.content;
    secret += purpose == Purpose::training ? "training" : "other";
  }
  run.plan.stage.defences.key = [digest = sha256Of(secret)](const std::string& stream) {
    const std::string bytes = sha256Of(digest + stream);
    RandomKey key;
    std::memcpy(&key, bytes.data(), sizeof key);
    return key;
  };
}

void checkDefences(const PreparedRun& run) {
  const ClientSettings& settings = run.settings;
  if (settings.defences.empty()) return;
  const auto refuse = [](const std::string& sentence, const std::string& hint) {
    throw UsageError("bad-defence", sentence, hint).about("privacy.defence");
  };
  if (settings.cohort.exists()) {
    refuse("defences do not support cohorts", "remove privacy.defence, or cohort");
  }
  const auto isTried = [](const auto& each) { return each.second.size() > 1; };
  if (std::ranges::any_of(settings.autoCodecs, isTried)) {
    refuse("defences do not support codec: auto, which sends the first batches several times",
           "name a codec, such as --set codec=block:bits=8");
  }
  for (const DefenceSpec& each : settings.defences) {
    if (each.kind != "noise" && minMicroBatch(settings, *run.data.train) < 2) {
      refuse(each.kind + " needs micro-batches of at least 2 samples",
             "lower train.micro_batches, or choose a train.batch that leaves no single sample");
    }
    if (each.kind != "distance_correlation") continue;
    if (settings.scalesLoss()) {
      refuse("distance_correlation does not support a scaled loss",
             "--set precision.scale_loss=false, or use bf16");
    }
    if (run.data.train->arrays().front().dtype == DType::i64) {
      refuse("distance_correlation needs inputs that are not whole numbers, such as images",
             "use another defence");
    }
    if (run.plan.stage.headIsFrozen) {
      refuse("distance_correlation trains the layers before the first cut, and all are frozen",
             "use another defence, or train the head");
    }
  }
}

std::uint32_t minMicroBatch(const ClientSettings& settings, const Dataset& train) {
  const std::uint32_t last = train.size() % settings.batch;
  const std::uint32_t whole = Division::of(settings.batch, settings.microBatches).smallest();
  return last == 0 ? whole : std::min(whole, Division::of(last, settings.microBatches).smallest());
}

void logWarnings(const PreparedRun& run, spdlog::logger& log) {
  for (const std::string& warning : run.warnings) log.warn(warning);
}

namespace {

struct KindOfBatch {
  const char* key;
  Division division;
};

// The whole batches and the last ones, of training and evaluation.
std::vector<KindOfBatch> kindsOfBatches(const ClientSettings& settings, const Datasets& data) {
  std::vector<KindOfBatch> kinds;
  const auto add = [&](const char* key, std::uint32_t all, std::uint32_t batch) {
    for (const std::uint32_t samples : {std::min(all, batch), all % batch}) {
      if (samples > 0) kinds.push_back({key, Division::of(samples, settings.microBatches)});
    }
  };
  add("train.batch", data.train->size(), settings.batch);
  add("eval.batch", data.test->size(), settings.evalBatch);
  return kinds;
}

}  // namespace

std::uint32_t minMicroBatchCount(const ClientSettings& settings, const Datasets& data) {
  std::uint32_t min = settings.microBatches;
  for (const auto& [key, division] : kindsOfBatches(settings, data)) {
    min = std::min(min, division.count);
  }
  return min;
}

void checkReplicaBatches(const ClientSettings& settings, const Datasets& data) {
  const std::uint32_t replicas = maxReplicasOf(settings);
  if (replicas == 1) return;
  for (const auto& [key, division] : kindsOfBatches(settings, data)) {
    if (division.count >= replicas) continue;
    throw UsageError(
        "bad-replicas",
        fmt::format("a batch of {} is divided into fewer micro-batches, {}, than a body has "
                    "replicas, {}",
                    countText(division.samples, "sample"), division.count, replicas),
        division.count < division.samples
            ? "set train.micro_batches to a multiple of the number of replicas"
            : fmt::format("change {}, so that the last batch has more samples", key));
  }
}

void checkAnswer(const wire::HelloOk& ok, const RunPlan& plan) {
  constexpr std::uint32_t kMaxThreads = 1 << 16;
  const auto refuse = [](const std::string& sentence) {
    throw ProtocolError("bad-metadata", "a HelloOk " + sentence,
                        "install the same version of Cleave on both machines");
  };
  if (ok.in_flight() != plan.inFlight) {
    refuse(fmt::format("has {} micro-batches in flight; the run has {}", ok.in_flight(),
                       plan.inFlight));
  }
  if (ok.threads() == 0 || ok.threads() > kMaxThreads) {
    refuse(fmt::format("has {} threads, which is not in 1…{}", ok.threads(), kMaxThreads));
  }
  if (ok.body_bytes() == 0 || ok.body_bytes() > maxWeightsBytes(plan)) {
    refuse(fmt::format("claims {} bytes for the body's weights, which have at most {}",
                       ok.body_bytes(), maxWeightsBytes(plan)));
  }
}

}  // namespace cleave
