#include "client/train/progress.h"

#include <spdlog/fmt/fmt.h>

#include <cmath>
#include <utility>

#include "common/core/terminal.h"

namespace cleave {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kLiveEvery = 0.1;  // seconds
constexpr double kPlainEvery = 5;
constexpr double kMemory = 3;  // time constant in seconds for smoothing rates

double by(std::uint64_t after, std::uint64_t before, double seconds) {
  return static_cast<double>(after - before) / seconds;
}

void addMetrics(Json& json, const std::string& prefix, const std::vector<std::string>& names,
                const std::vector<std::optional<double>>& values) {
  for (std::size_t j = 0; j < values.size() && j < names.size(); ++j) {
    if (values[j]) json[prefix + names[j]] = *values[j];
  }
}

std::string metricsText(const ProgressOptions& options,
                        const std::vector<std::optional<double>>& values) {
  const std::vector<std::string>& names = options.metricNames;
  std::string text;
  for (std::size_t j = 0; j < values.size() && j < names.size(); ++j) {
    if (!values[j] || options.hidden.contains(names[j])) continue;
    text += text.empty() ? " " : ", ";
    text += options.shares.contains(names[j])
                ? fmt::format("{} {:.2f} %", names[j], 100 * *values[j])
                : fmt::format("{} {:.4f}", names[j], *values[j]);
  }
  return text;
}

}  // namespace

Progress::Progress(ProgressOptions options)
    : options_(std::move(options)), isLive_(isLiveTerminal(options_.people)) {}

void Progress::end() {
  if (isLive_) StatusLine::instance().clear();
}

void Progress::resume(std::uint64_t step, std::uint64_t samples) {
  firstStep_ = step;
  lastSamples_ = samples;
}

void Progress::batch(const State& state, const LinkTotals& totals) {
  if (options_.events != nullptr && state.phase == Phase::train) printEvent(state, totals);
  if (options_.people >= 0) show(state, totals);
}

void Progress::show(const State& state, const LinkTotals& totals) {
  const double elapsed = secondsSince(shownAt_.value_or(start_));
  const bool isDue = isLive_ ? !shownAt_ || elapsed >= kLiveEvery : elapsed >= kPlainEvery;
  if (!isDue || elapsed <= 0) return;
  measure(state, totals, elapsed);
  shownAt_ = now();
  if (isLive_) {
    StatusLine::instance().show(options_.people, barLine(bar_, terminalColumns(options_.people),
                                                         wantsColor(options_.people)));
  } else {
    StatusLine::instance().writeAbove(options_.people, plainLine(bar_) + "\n");
  }
}

void Progress::measure(const State& state, const LinkTotals& totals, double elapsed) {
  const double weight = hasRate_ ? 1 - std::exp(-elapsed / kMemory) : 1;
  const auto follow = [&](double& mean, double value) { mean += weight * (value - mean); };
  // An evaluation trains no samples, so its time is excluded from the training rate.
  if (state.phase == Phase::train || !hasRate_) {
    follow(bar_.samplesPerSecond, by(state.samples, lastSamples_, elapsed));
  }
  follow(bar_.up, by(totals.up(), lastUp_, elapsed));
  follow(bar_.down, by(totals.down(), lastDown_, elapsed));
  hasRate_ = true;
  lastSamples_ = state.samples;
  lastUp_ = totals.up();
  lastDown_ = totals.down();

  bar_.phase = phaseName(state.phase);
  bar_.step = state.step;
  bar_.steps = options_.totalSteps;
  bar_.epoch = state.epoch;
  bar_.epochs = state.epochs;
  if (state.phase == Phase::train && !state.metrics.empty()) {
    bar_.loss = state.metrics.front().value_or(std::nan(""));
  }
  if (state.step <= firstStep_) return;
  const double perStep = secondsSince(start_) / static_cast<double>(state.step - firstStep_);
  bar_.secondsLeft = perStep * static_cast<double>(options_.totalSteps - state.step);
}

void Progress::printEvent(const State& state, const LinkTotals& totals) {
  Json json = {{"epoch", state.epoch},
               {"step", state.step},
               {"steps", options_.totalSteps},
               {"samples", state.batchSamples},
               {"seconds", state.seconds}};
  addMetrics(json, "", options_.metricNames, state.metrics);
  if (state.learningRate) json["learning_rate"] = *state.learningRate;
  if (state.gradientNorm) json["gradient_norm"] = *state.gradientNorm;
  json["images_per_second"] = static_cast<double>(state.batchSamples) / state.seconds;
  json["total_up_bytes"] = totals.up();
  json["total_down_bytes"] = totals.down();
  json["elapsed_seconds"] = secondsSince(start_);
  options_.events->write("step", json);
}

void Progress::epoch(const EpochRow& row, std::uint64_t epochs) {
  const double samplesPerSecond = static_cast<double>(row.samples) / row.trainSeconds;
  if (options_.events != nullptr) {
    Json json = {{"epoch", row.epoch},
                 {"epochs", epochs},
                 {"steps", row.steps},
                 {"samples", row.samples},
                 {"train_seconds", row.trainSeconds},
                 {"images_per_second", samplesPerSecond}};
    addMetrics(json, "train_", options_.metricNames, row.trainMetrics);
    if (row.evalSeconds) json["eval_seconds"] = *row.evalSeconds;
    addMetrics(json, "eval_", options_.metricNames, row.evalMetrics);
    addMetrics(json, "own_eval_", options_.metricNames, row.ownEvalMetrics);
    options_.events->write("epoch", json);
  }
  if (options_.people < 0) return;
  std::string text = fmt::format("epoch {}/{} done: train{}", row.epoch, epochs,
                                 metricsText(options_, row.trainMetrics));
  if (row.evalSeconds) {
    text += "; eval" + metricsText(options_, row.evalMetrics);
    const std::string own = metricsText(options_, row.ownEvalMetrics);
    if (!own.empty()) text += " (own samples:" + own + ")";
  }
  text += fmt::format("; {}; {:.1f} s\n", sampleRateText(samplesPerSecond), row.trainSeconds);
  StatusLine::instance().writeAbove(options_.people, text);
}

}  // namespace cleave
