// The keys of the loss and the metrics, and of what they decide: the best model, an early end.
#include "client/config/settings_keys.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/core/metric_titles.h"
#include "common/run/config_errors.h"

namespace cleave::client_keys {
namespace {

void readLoss(Config& config, Settings& settings) {
  LossSpec& loss = settings.scores.loss;
  config.expand("train.loss", "name");
  loss.name = config.text("train.loss.name", loss.name);
  checkAt(config, "train.loss.name", [&] { findLoss(loss.name); });
  if (findLoss(loss.name).target != TargetKind::classes) return;
  constexpr double kMaxWeight = 1e6;
  loss.labelSmoothing = config.number("train.loss.label_smoothing", 0, 1, loss.labelSmoothing);
  loss.classWeights = config.numbers("train.loss.class_weights", 0, kMaxWeight, loss.classWeights);
  loss.ignoreIndex = config.integer("train.loss.ignore_index", -kMany, kMany, loss.ignoreIndex);
}

// Splits "top1, top5" into a list.
std::vector<std::string> splitNames(std::string_view text) {
  std::vector<std::string> names;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(", "), text.size());
    names.emplace_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 2, text.size()));
  }
  return names;
}

void readMetrics(Config& config, Settings& settings) {
  ScoreSpec& scores = settings.scores;
  scores.metrics = config.texts("train.metrics", splitNames(findLoss(scores.loss.name).metrics));
  checkAt(config, "train.metrics", [&] { checkScores(scores); });
}

void readKeepBest(Config& config, Settings& settings) {
  config.expand("keep.best", "metric");
  if (config.keys("keep.best").empty()) return;
  settings.bestMetric = config.text("keep.best.metric");
  const std::vector<std::string> measured = settings.scores.names();
  if (std::count(measured.begin(), measured.end(), settings.bestMetric) > 0) return;
  throw UsageError("bad-config",
                   config.where("keep.best.metric") + ": the run does not measure '" +
                       settings.bestMetric + "', only " +
                       fmt::format("{}", fmt::join(measured, ", ")),
                   "name one of these, or add the metric to train.metrics");
}

void readKeepLast(Config& config, Settings& settings) {
  settings.keepsLast = config.boolean("keep.last", settings.keepsLast);
  if (settings.keepsLast || config.has("keep.best")) return;
  throw UsageError("bad-config",
                   config.where("keep.last") +
                       ": without the last and the best model, the run "
                       "would keep none",
                   "set keep.best, or remove keep.last");
}

void readStop(Config& config, Settings& settings) {
  config.expand("train.stop", "metric");
  if (config.keys("train.stop").empty()) return;
  EarlyStop& stop = settings.stop;
  stop.metric = config.text("train.stop.metric", std::nullopt, settings.scores.names());
  stop.isGreatest =
      config.text("train.stop.mode", metricTitle(stop.metric).isBetterIfGreater ? "max" : "min",
                  {"max", "min"}) == "max";
  stop.patience = static_cast<std::uint64_t>(
      config.integer("train.stop.patience", 1, kMany, static_cast<std::int64_t>(stop.patience)));
  stop.minChange = config.number("train.stop.min_change", 0, 1e9, stop.minChange);
}

void readTarget(Config& config, ClientSettings& settings) {
  config.expand("eval.target", "value");
  if (config.keys("eval.target").empty()) return;
  settings.target.metric =
      config.text("eval.target.metric", settings.mainMetric(), settings.scores.names());
  settings.target.value = config.number("eval.target.value", -1e9, 1e9);
}

void addTarget(Table& table) {
  table
      .add("eval.target.value", "number", "", "none",
           "the summary, sweeps and reports say after how many steps, seconds and bytes an "
           "evaluation reached this value of `eval.target.metric`; accuracies are 0 to 1; short "
           "form: `target: 0.9`",
           readTarget)
      .mayChange();
  table
      .add("eval.target.metric", "a metric, or `loss`", "", "the first of `train.metrics`",
           "the metric that must reach that value", nullptr)
      .mayChange();
}

void addStop(Table& table) {
  table.add("train.stop.metric", "a metric, or `loss`", "", "none",
            "ends the run early, after an epoch, if this metric has not improved in "
            "`train.stop.patience` evaluations; short form: `stop: loss`",
            readStop);
  table.add("train.stop.mode", "`max`, `min`", "", "by the metric", "which value is better",
            nullptr);
  table
      .add("train.stop.patience", integerType(1, kMany), "evaluations", "`3`",
           "number of evaluations without a better value after which the run ends", nullptr)
      .mayChange();
  table
      .add("train.stop.min_change", numberType(0, 1e9), "", "`0`",
           "minimum difference for a value to count as better", nullptr)
      .mayChange();
}

}  // namespace

void addScores(Table& table) {
  std::string defaults;
  for (const LossRow& row : lossTable()) {
    if (row.metrics.empty()) continue;
    defaults += fmt::format("{}`{}`: {}", defaults.empty() ? "" : "; ", row.name, row.metrics);
  }
  table.add("train.loss.name", namesOf(lossTable()), "", "`cross_entropy`",
            "short form: `train.loss: mse`; see [losses](models.md#losses-and-metrics)", readLoss);
  table.add("train.loss.label_smoothing", numberType(0, 1), "", "`0`",
            "`cross_entropy`, `next_token`: share of the probability that is "
            "spread over all classes",
            nullptr);
  table.add("train.loss.class_weights", "list of numbers", "", "`[]`",
            "`cross_entropy`, `next_token`: a weight per class", nullptr);
  table.add("train.loss.ignore_index", "integer", "", "`-100`",
            "`cross_entropy`, `next_token`: targets with this value are ignored", nullptr);
  table.add("train.metrics", "list of strings", "", defaults,
            "columns of the run's files after the loss: " + namesOf(batchMetricTable()),
            readMetrics);
  table
      .add("keep.last", "boolean", "", "`true`",
           "saves the model after each epoch and at the end, as `model.safetensors`; `false`: only "
           "the best model is kept, which requires `keep.best`",
           readKeepLast)
      .mayChange();
  table.add("keep.best.metric", "a metric, or `loss`", "", "none",
            "also keeps the model with the best value in an evaluation, as "
            "`model.best.safetensors`; short form: `keep: {best: matthews}`",
            readKeepBest);
  table.add("keep.best.mode", "`max`, `min`", "", "by the metric", "which value is the best",
            [](Config& config, Settings& s) {
              if (s.bestMetric.empty()) return;
              const bool isGreatest = metricTitle(s.bestMetric).isBetterIfGreater;
              s.bestIsGreatest = config.text("keep.best.mode", isGreatest ? "max" : "min",
                                             {"max", "min"}) == "max";
            });
  addStop(table);
  addTarget(table);
}

}  // namespace cleave::client_keys
