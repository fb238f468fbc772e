#include "client/planning/exposure.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "client/run/prepare.h"
#include "common/core/units.h"

namespace cleave {
namespace {

bool hasTokens(const PreparedRun& run) {
  const auto arrays = run.data.train->arrays();
  // The last array is the target.
  return std::any_of(arrays.begin(), arrays.end() - 1,
                     [](const SampleArray& array) { return array.dtype == DType::i64; });
}

std::string codecAt(const PreparedRun& run, Flow flow) {
  return run.plan.codecs.at(flow).own->spec();
}

// What the noise of a run certifies; empty: nothing.
std::string noiseText(const PreparedRun& run) {
  constexpr double kDelta = 1e-5;
  const auto& blocks = run.plan.blocks;
  if (hasBatchNorm({blocks.begin(), blocks.begin() + run.plan.stage.cuts.cut0})) return "";
  for (const DefenceSpec& each : run.settings.defences) {
    if (each.kind != "noise") continue;
    const double epsilon = epsilonOf(each.parameters.at("deviation"), each.parameters.at("clip"),
                                     run.settings.epochs, kDelta);
    if (!std::isfinite(epsilon)) return "";
    return fmt::format(
        "The noise gives one sample's own {} in {} local differential privacy with epsilon {:.3g} "
        "at delta {:g}, for fixed weights of the head. ",
        flowName(activationAt(run.plan.place.firstCut)), countText(run.settings.epochs, "epoch"),
        epsilon, kDelta);
  }
  return "";
}

}  // namespace

std::string exposureText(const PreparedRun& run) {
  const Place& place = run.plan.place;
  const bool isAlone = run.settings.bodies() == 1;
  const Flow inputs = activationAt(place.firstCut), labels = gradientAt(place.lastCut);
  const bool sendsGradients = place.contains(labels);
  std::string text = fmt::format(
      "From {} (codec {}), {} can {}", flowName(inputs), codecAt(run, inputs),
      isAlone ? "the server" : "the first server",
      hasTokens(run) ? "recover the tokens of the texts exactly" : "reconstruct the inputs");
  if (sendsGradients) {
    text += fmt::format("; from {} (codec {}), {} can tell the labels", flowName(labels),
                        codecAt(run, labels), isAlone ? "it" : "the last server");
  }
  const bool keepsSamples = run.plan.spec.trainSamples > 0;
  text += keepsSamples ? "; codec delta also shows which rows belong to one sample. " : ". ";
  text += noiseText(run);
  return text +
         "No codec prevents it; to measure how well it works here, record a run with "
         "--record-traffic and audit it: docs/privacy.md.";
}

}  // namespace cleave
