// Decides on each step from the reports on its gradients: the learning rates, the clipping and the
// loss scale.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "client/config/settings.h"
#include "common/topology/cohort.h"
#include "common/topology/step.h"

namespace cleave {

// In fp16, small gradients would become 0. The loss is therefore multiplied by a scale, and the
// gradients are divided by the same scale at Update. A step whose gradients overflow is skipped,
// and the scale is halved; after 2000 steps without an overflow, it is doubled. These numbers are
// the same as in PyTorch's GradScaler.
class LossScaler {
 public:
  explicit LossScaler(bool isOn) : isOn_(isOn), scale_(isOn ? kFirst : 1) {}

  bool isOn() const { return isOn_; }
  double scale() const { return scale_; }
  std::uint64_t skipped() const { return skipped_; }
  // Call once per step. `finite`: whether the gradients are finite. Returns whether the step is
  // applied. Throws RunError "non-finite" if the gradients are not finite although the scale is
  // already tiny.
  bool accepts(bool finite);

  nlohmann::json save() const;
  void restore(const nlohmann::json& saved);  // throws nlohmann::json::exception

 private:
  static constexpr double kFirst = 65536;
  bool isOn_;
  double scale_;
  std::uint64_t stepsSince_ = 0;  // number of steps since the last change of the scale
  std::uint64_t skipped_ = 0;
};

class StepDecider {
 public:
  // The settings are borrowed. `samples`: PreparedRun::trainSamples().
  StepDecider(const ClientSettings& settings, std::uint32_t samples);

  // In a relay, each member's learning rates are those of a run of its own: call before the first
  // step of its turn, this attendance of the roster.
  void beginTurn(const Roster& roster, std::size_t attendance);

  // The loss scale of the next step.
  double lossScale() const { return scaler_.scale(); }
  // If `clipNorm` is set and the norm exceeds it, gradients are scaled by clipNorm / (norm + 1e-6),
  // like PyTorch's clip_grad_norm_. Throws RunError "non-finite" if gradients are not finite and
  // loss scaling is off.
  StepDecision decide(std::uint64_t step, const GradientReport& head,
                      const std::vector<GradientReport>& bodies, const GradientReport& tail);
  double learningRateOf(std::uint64_t step) const;
  // The global gradient norm of the last decided step. It is not finite if that step is skipped.
  double norm() const { return norm_; }
  std::uint64_t skipped() const { return scaler_.skipped(); }

  nlohmann::json save() const { return scaler_.save(); }
  void restore(const nlohmann::json& saved) { scaler_.restore(saved); }

 private:
  const ClientSettings& settings_;
  LearningRateOptions learningRate_;
  std::uint64_t firstStep_ = 1;  // of this turn
  std::uint64_t before_ = 0;     // the member's steps in earlier turns
  LossScaler scaler_;
  double norm_ = 0;
};

}  // namespace cleave
