// A model with a few float weights, small enough to be computed by hand. Sums of floats depend on
// their order, so two runs are bit-identical only if they add in the same order.
#pragma once

#include <cstdint>
#include <vector>

#include "common/topology/step.h"

namespace cleave::test {

// A part of the model, which multiplies its input by a weight.
struct TinyPart {
  float weight = 1;
  float gradient = 0;

  float forward(float x) const { return weight * x; }
  // Returns the gradient of the input.
  float backward(float x, float received) {
    gradient += received * x;
    return received * weight;
  }
  void update(const StepDecision& decision) {
    const auto factor = static_cast<float>(decision.learningRates.at(0) * decision.clipFactor);
    weight -= factor * gradient;
    gradient = 0;
  }
};

// Head, bodies and tail start with different weights.
inline std::vector<TinyPart> tinyParts(std::size_t bodies) {
  std::vector<TinyPart> parts;
  for (std::size_t p = 0; p < bodies + 2; ++p) {
    parts.push_back({0.9F + 0.07F * static_cast<float>(p), 0});
  }
  return parts;
}

inline float tinyInput(const MicroBatch& at) {
  return 0.1F * static_cast<float>(at.step % 7 + 1) + 0.013F * static_cast<float>(at.i);
}
// The loss is half the square of the output's distance from 1.
inline float tinyLossGradient(float output) { return output - 1; }

// Clips the norm of all gradients, in the order of the parts.
inline StepDecision tinyDecision(std::uint64_t step, const std::vector<double>& squareSums) {
  double sum = 0;
  for (const double each : squareSums) sum += each;
  return {step, true, {0.05}, 1 / (1 + sum), 1, false, {}};
}
inline double squareOf(float gradient) { return double{gradient} * double{gradient}; }

}  // namespace cleave::test
