#include "client/planning/exposure.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "client/run/prepare.h"

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
  return text +
         "No codec prevents it; to measure how well it works here, record a run with "
         "--record-traffic and audit it: docs/privacy.md.";
}

}  // namespace cleave
