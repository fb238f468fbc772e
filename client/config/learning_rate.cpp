#include "client/config/learning_rate.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <numbers>
#include <vector>

#include "common/core/names.h"

namespace cleave {
namespace {

double constant(const LearningRateOptions&, double) { return 1; }

// Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts", ICLR 2017, without
// restarts.
double cosine(const LearningRateOptions&, double progress) {
  return 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

double linear(const LearningRateOptions&, double progress) { return 1 - progress; }

double polynomial(const LearningRateOptions& options, double progress) {
  return std::pow(1 - progress, options.power);
}

constexpr auto kTable = std::to_array<LearningRateRow>({
    {"constant", "stays at the peak until the last step", false, false, constant},
    {"cosine", "half a cosine from the peak to the end value", true, false, cosine},
    {"linear", "a straight line from the peak to the end value", true, false, linear},
    {"polynomial", "(1 - progress)^power between the peak and the end value", true, true,
     polynomial},
});

}  // namespace

std::span<const LearningRateRow> learningRateTable() { return kTable; }

const LearningRateRow& findLearningRate(const std::string& name) {
  return findByName(kTable, name, "unknown-learning-rate", "a learning rate schedule");
}

double learningRate(const LearningRateOptions& options, std::uint64_t step) {
  assert(step >= 1);
  const LearningRateRow& row = findLearningRate(options.schedule);
  const std::uint64_t warmup = options.warmupSteps;
  if (step <= warmup) {
    return options.peak * static_cast<double>(step) / static_cast<double>(warmup);
  }
  const std::uint64_t after = options.totalSteps > warmup ? options.totalSteps - warmup : 1;
  const double progress = static_cast<double>(step - warmup - 1) / static_cast<double>(after);
  const double factor = row.factor(options, std::min(progress, 1.0));
  // With this formula, a factor of 1 gives exactly the peak.
  return options.peak * factor + options.end * (1 - factor);
}

}  // namespace cleave
