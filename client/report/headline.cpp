#include "client/report/headline.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

namespace cleave {
namespace {

struct Remedy {
  const char* bottleneck;  // as steps.csv has it
  const char* sentence;
};
constexpr Remedy kRemedies[] = {
    {"client compute",
     "A faster client, or cuts that leave it fewer layers, would shorten a step."},
    {"server compute",
     "A faster server, or a GPU there, would shorten a step; a faster link would not."},
    {"uplink",
     "Fewer bytes up (the codecs of activation/0 and gradient/1) or a faster uplink would shorten "
     "a step."},
    {"downlink",
     "Fewer bytes down (the codecs of activation/1 and gradient/0) or a faster downlink would "
     "shorten a step."},
    {"latency",
     "A step is mostly the way there and back: a larger batch spreads it over more samples."},
    {"codec",
     "Encoding and decoding take longest: a simpler codec, or none, would shorten a step."},
};

// Steps this far above their bound waited for something that the bound does not know.
constexpr double kFarAboveBound = 1.5;

void describeBound(const TrainingFigures& training, nlohmann::json& headline) {
  if (training.boundedSteps == 0 || training.bounds <= 0) return;
  const double over = training.boundedSeconds / training.bounds;
  headline["over_bound"] = over;
  headline["bounded_seconds_a_step"] =
      training.boundedSeconds / static_cast<double>(training.boundedSteps);
  headline["bound_seconds_a_step"] = training.bounds / static_cast<double>(training.boundedSteps);
  const auto most = std::max_element(
      training.bottlenecks.begin(), training.bottlenecks.end(),
      [](const auto& one, const auto& other) { return one.second < other.second; });
  const double share = most->second / training.boundedSeconds;
  headline["bottleneck"] = most->first;
  headline["bottleneck_share"] = share;
  std::string words = fmt::format(
      "It sets the least time of a step in {:.0f} % of the training time.", 100 * share);
  for (const Remedy& remedy : kRemedies) {
    if (most->first == remedy.bottleneck) words += std::string(" ") + remedy.sentence;
  }
  if (over > kFarAboveBound) {
    words +=
        " Steps are far above the bound, so something else delays them too: another schedule, more "
        "micro-batches, or processors shared with other programs.";
  }
  headline["words"] = words;
}

double busiest(const BytesBySecond& bytes) {
  const auto& seconds = bytes.seconds();
  return seconds.empty() ? 0 : *std::max_element(seconds.begin(), seconds.end());
}

void describeLink(RunReader& run, nlohmann::json& headline) {
  const TrainingFigures& training = run.training();
  if (training.rawBytes > 0) {
    headline["raw_bytes"] = training.rawBytes;
    headline["wire_bytes"] = training.wireBytes;
    headline["ratio"] = training.wireBytes / training.rawBytes;
  }
  const SideFigures& client = run.client();
  const std::array<std::string, kDirections> names = {"up", "down"};
  for (std::size_t direction = 0; direction < kDirections; ++direction) {
    double bytes = client.controlBytes[direction];
    for (const double second : client.bytes[direction].seconds()) bytes += second;
    if (bytes <= 0) continue;
    const std::string& name = names[direction];
    headline["bytes_" + name] = bytes;
    headline["busiest_second_" + name] = busiest(client.bytes[direction]);
    if (training.lastTime > 0) {
      headline["mean_" + name + "_bytes_per_second"] = bytes / training.lastTime;
    }
  }
}

}  // namespace

nlohmann::json headline(RunReader& run) {
  const TrainingFigures& training = run.training();
  nlohmann::json headline = nlohmann::json::object();
  for (const auto& evaluation : training.evaluations) {
    if (evaluation.loss) headline["eval_loss"] = *evaluation.loss;
    if (!evaluation.top1) continue;
    headline["top1"] = *evaluation.top1;
    headline["best_top1"] = std::max(headline.value("best_top1", 0.0), *evaluation.top1);
  }
  if (training.lastTrainLoss) headline["train_loss"] = *training.lastTrainLoss;
  if (training.lastTrainTop1) headline["train_top1"] = *training.lastTrainTop1;
  if (training.lastTime > 0) headline["seconds"] = training.lastTime;
  if (training.steps > 0) {
    headline["steps"] = training.steps;
    headline["samples"] = training.samples;
    headline["epoch"] = training.lastEpoch;
    headline["seconds_a_step"] = training.stepSeconds / static_cast<double>(training.steps);
    // As `train` says it, where the epochs' own seconds are known; they have what passes between
    // steps too.
    const bool byEpoch = training.epochSeconds > 0;
    const double samples = byEpoch ? training.epochSamples : training.samples;
    const double seconds = byEpoch ? training.epochSeconds : training.stepSeconds;
    if (seconds > 0) headline["images_per_second"] = samples / seconds;
  }
  describeLink(run, headline);
  describeBound(training, headline);
  return headline;
}

}  // namespace cleave
