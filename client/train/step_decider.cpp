#include "client/train/step_decider.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace cleave {

bool LossScaler::accepts(bool finite) {
  if (!isOn_) return finite;
  constexpr std::uint64_t kGrowthInterval = 2000;
  constexpr double kFactor = 2, kSmallest = 0x1p-14;
  ++stepsSince_;
  if (!finite) {
    if (scale_ <= kSmallest) {
      throw RunError("non-finite", "the gradients are not finite, even with a tiny loss scale",
                     "lower train.learning_rate.peak, or set precision to bf16");
    }
    scale_ /= kFactor;
    stepsSince_ = 0;
    ++skipped_;
  } else if (stepsSince_ == kGrowthInterval) {
    scale_ *= kFactor;
    stepsSince_ = 0;
  }
  return finite;
}

nlohmann::json LossScaler::save() const {
  return {{"scale", scale_}, {"steps_since", stepsSince_}, {"skipped", skipped_}};
}

void LossScaler::restore(const nlohmann::json& saved) {
  scale_ = saved.at("scale");
  stepsSince_ = saved.at("steps_since");
  skipped_ = saved.at("skipped");
}

StepDecider::StepDecider(const ClientSettings& settings, std::uint32_t samples)
    : settings_(settings),
      learningRate_(learningRateOptions(settings, samples)),
      scaler_(settings.scalesLoss()) {}

void StepDecider::beginTurn(const Roster& roster, std::size_t attendance) {
  const Attendance& turn = roster.attendance[attendance];
  const std::uint32_t samples = roster.train[turn.present.front()];
  const auto members = static_cast<std::uint32_t>(roster.train.size());
  learningRate_ = learningRateOptions(settings_, samples);
  firstStep_ = turn.firstStep;
  before_ = turnLengthOf(settings_).epochsBefore(turnsOf(roster)[attendance], members) *
            stepsPerEpoch(settings_, samples);
}

StepDecision StepDecider::decide(std::uint64_t step, const GradientReport& head,
                                 const std::vector<GradientReport>& bodies,
                                 const GradientReport& tail) {
  double squareSum = head.squareSum;  // added in the order of the model, as in the whole model
  for (const GradientReport& body : bodies) squareSum += body.squareSum;
  squareSum += tail.squareSum;
  const bool bodiesAreFinite = std::all_of(bodies.begin(), bodies.end(),
                                           [](const GradientReport& body) { return body.finite; });
  const char* const part = !head.finite       ? "head"
                           : !bodiesAreFinite ? "body"
                           : !tail.finite     ? "tail"
                                              : nullptr;
  if (part != nullptr && !scaler_.isOn()) {
    throw RunError(
        "non-finite", fmt::format("the gradients of the {} are not finite in step {}", part, step),
        "lower train.learning_rate.peak, lengthen its warm-up, set train.clip_norm, or use a codec "
        "with more bits");
  }
  StepDecision decision;
  decision.step = step;
  decision.lossScale = scaler_.scale();
  decision.apply = scaler_.accepts(part == nullptr);
  norm_ = part == nullptr ? std::sqrt(squareSum) / decision.lossScale
                          : std::numeric_limits<double>::infinity();
  decision.bases = head.bases;
  for (const GradientReport& body : bodies) {
    decision.bases.insert(decision.bases.end(), body.bases.begin(), body.bases.end());
  }
  const double rate = learningRateOf(step);
  decision.learningRates = {rate};
  for (const double factor : settings_.groupRates) decision.learningRates.push_back(rate * factor);
  constexpr double kEpsilon = 1e-6;
  if (settings_.clipNorm > 0 && decision.apply) {
    decision.clipFactor = std::min(1.0, settings_.clipNorm / (norm_ + kEpsilon));
  }
  return decision;
}

double StepDecider::learningRateOf(std::uint64_t step) const {
  return learningRate(learningRate_, step - firstStep_ + 1 + before_);
}

}  // namespace cleave
