#include "client/report/records/headline.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "common/core/metric_titles.h"

namespace cleave {
namespace {

// The bound in the summary or, until the run has ended, in its rows.
void describeBound(const RunReader& run, nlohmann::json& headline) {
  const TrainingFigures& training = run.training();
  if (training.boundedSteps == 0 || training.bounds <= 0) return;
  const auto max = std::max_element(
      training.bottlenecks.begin(), training.bottlenecks.end(),
      [](const auto& one, const auto& other) { return one.second < other.second; });
  SummaryFile::Bound bound{training.bounds / static_cast<double>(training.boundedSteps),
                           training.boundedSeconds / training.bounds, max->first};
  if (const auto& ended = run.summary().bound) bound = *ended;
  headline["over_bound"] = bound.overBound;
  headline["bounded_seconds_per_step"] = bound.overBound * bound.secondsPerStep;
  headline["bound_seconds_per_step"] = bound.secondsPerStep;
  headline["bottleneck"] = bound.bottleneck;
  const auto seconds = training.bottlenecks.find(bound.bottleneck);
  if (seconds == training.bottlenecks.end()) return;
  const double share = seconds->second / training.boundedSeconds;
  headline["bottleneck_share"] = share;
  headline["words"] =
      fmt::format("It limited the step for {:.0f} % of the training time.", 100 * share);
}

double busiest(const BytesBySecond& bytes) {
  const auto& seconds = bytes.seconds();
  return seconds.empty() ? 0 : *std::max_element(seconds.begin(), seconds.end());
}

void describeTotals(RunReader& run, nlohmann::json& headline) {
  const RunTotals totals = runTotals(run);
  if (totals.seconds > 0) headline["seconds"] = totals.seconds;
  if (totals.samplesPerSecond) headline["images_per_second"] = *totals.samplesPerSecond;
  if (totals.ratio) headline["ratio"] = *totals.ratio;
  const std::array<std::string, kDirections> names = {"up", "down"};
  for (std::size_t direction = 0; direction < kDirections; ++direction) {
    if (totals.bytes[direction] <= 0) continue;
    const std::string& name = names[direction];
    headline["bytes_" + name] = totals.bytes[direction];
    headline["tensor_bytes_" + name] = totals.tensors[direction];
    headline["model_bytes_" + name] = totals.model[direction];
    headline["busiest_second_" + name] = busiest(run.client().bytes[direction]);
    if (const auto bandwidth = totals.bandwidth(direction)) {
      headline["mean_" + name + "_bytes_per_second"] = *bandwidth;
    }
  }
}

void describeProgress(const RunReader& run, nlohmann::json& headline) {
  for (const auto& [key, text] : run.environment()) {
    if (key == "started") headline["started"] = text;
  }
  const TrainingFigures& training = run.training();
  const PlannedRun& planned = run.planned();
  if (planned.epochs > 0) headline["total_epochs"] = planned.epochs;
  if (planned.steps == 0) return;
  headline["total_steps"] = planned.steps;
  if (training.ended || training.latest.size() < 2 || planned.steps <= training.lastStep) return;
  // Assumes that the run continues at the speed of the latest steps, including the evaluations
  // between them.
  const auto& [firstTime, firstStep] = training.latest.front();
  const auto& [lastTime, lastStep] = training.latest.back();
  if (lastStep <= firstStep) return;  // the run has just been continued
  headline["seconds_left"] = (lastTime - firstTime) / static_cast<double>(lastStep - firstStep) *
                             static_cast<double>(planned.steps - training.lastStep);
}

// The counts of summary.json, which `train` prints; until it exists, those of the rows.
void describeInterruptions(const RunReader& run, nlohmann::json& headline) {
  const TrainingFigures& training = run.training();
  const auto& ended = run.summary().interruptions;
  headline["resumes"] = ended ? ended->resumes : training.resumes;
  headline["reconnects"] = ended ? ended->reconnects : training.reconnects;
  headline["steps_redone"] = ended ? ended->stepsRedone : training.stepsRedone;
  if (ended) headline["offline_seconds"] = ended->offlineSeconds;
}

}  // namespace

RunTotals runTotals(RunReader& run) {
  const TrainingFigures& training = run.training();
  const SpentByRows::Sums spent = training.spent.sums();
  RunTotals totals;
  totals.tensors = spent.tensors;
  totals.model = run.client().blobBytes;
  if (const auto& ended = run.summary().totals) {
    // Files of earlier versions do not have the parts.
    const bool hasParts = ended->tensors[0] + ended->tensors[1] > 0;
    const RunTotals parts = hasParts ? *ended : totals;
    totals = *ended;
    totals.tensors = parts.tensors;
    totals.model = parts.model;
    return totals;
  }
  totals.seconds = spent.seconds;
  for (std::size_t d = 0; d < kDirections; ++d)
    totals.bytes[d] = spent.tensors[d] + spent.control[d] + totals.model[d];
  if (spent.rawBytes > 0) totals.ratio = (spent.tensors[0] + spent.tensors[1]) / spent.rawBytes;
  // The durations of the epochs, if they are recorded, because these include the time between
  // steps.
  const bool byEpoch = training.epochSeconds > 0;
  const double samples = byEpoch ? training.epochSamples : training.samples;
  const double seconds = byEpoch ? training.epochSeconds : training.stepSeconds;
  if (seconds > 0) totals.samplesPerSecond = samples / seconds;
  return totals;
}

nlohmann::json headline(RunReader& run) {
  const TrainingFigures& training = run.training();
  nlohmann::json headline = nlohmann::json::object();
  const MetricTitle shown = metricTitle(run.metricName());
  headline["metric_name"] = shown.name;  // empty: the run has no metric
  headline["metric_title"] = shown.title;
  headline["metric_unit"] = shown.isShare ? "share" : "number";
  headline["metric_better"] = shown.isBetterIfGreater ? "more" : "less";
  for (const auto& evaluation : training.evaluations) {
    if (evaluation.loss) headline["eval_loss"] = *evaluation.loss;
    if (evaluation.ownMetric) headline["own_metric"] = *evaluation.ownMetric;
    if (!evaluation.metric) continue;
    headline["metric"] = *evaluation.metric;
    const double best = headline.value("best_metric", *evaluation.metric);
    const bool isBetter =
        shown.isBetterIfGreater ? *evaluation.metric > best : *evaluation.metric < best;
    if (headline.contains("best_metric") && !isBetter) continue;
    headline["best_metric"] = *evaluation.metric;
    headline["best_epoch"] = evaluation.epoch;
  }
  if (training.lastTrainLoss) headline["train_loss"] = *training.lastTrainLoss;
  if (training.lastTrainMetric) headline["train_metric"] = *training.lastTrainMetric;
  if (training.steps > 0) {
    headline["steps"] = training.steps;
    headline["samples"] = training.samples;
    headline["epoch"] = training.lastEpoch;
    headline["seconds_per_step"] = training.means.seconds.value();
  }
  describeProgress(run, headline);
  describeTotals(run, headline);
  describeBound(run, headline);
  describeInterruptions(run, headline);
  const SummaryFile& summary = run.summary();
  if (!summary.advice.empty()) headline["advice"] = summary.advice;
  if (const auto& target = summary.target) {
    const MetricTitle title = metricTitle(target->metric);
    headline["target"] = {{"title", title.title},
                          {"unit", title.isShare ? "share" : "number"},
                          {"value", target->value}};
    if (target->steps > 0) {
      headline["target_steps"] = target->steps;
      headline["target_seconds"] = target->seconds;
      headline["target_bytes"] = target->bytes;
    }
  }
  if (summary.kept) {
    const MetricTitle kept = metricTitle(summary.kept->metric);
    headline["kept"] = {{"title", kept.title},
                        {"unit", kept.isShare ? "share" : "number"},
                        {"value", summary.kept->value},
                        {"epoch", summary.kept->epoch}};
  }
  return headline;
}

}  // namespace cleave
