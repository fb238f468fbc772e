#include "client/learning_rate.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <numbers>
#include <vector>

#include "common/core/config.h"

namespace cleave {
namespace {

double constant(double) { return 1; }

// Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts", ICLR 2017, without
// restarts.
double cosine(double progress) { return 0.5 * (1 + std::cos(std::numbers::pi * progress)); }

constexpr std::array<LearningRateRow, 2> kTable = {{
    {"constant", "the peak to the end", constant},
    {"cosine", "half a cosine from the peak towards 0", cosine},
}};

const LearningRateRow& findRow(const std::string& name) {
  std::vector<std::string> names;
  std::string list;
  for (const LearningRateRow& row : kTable) {
    if (row.name == name) return row;
    names.emplace_back(row.name);
    list += (list.empty() ? "" : ", ") + names.back();
  }
  const std::string nearest = nearestName(name, names);
  throw UsageError("unknown-learning-rate", "'" + name + "' is not a learning rate schedule",
                   (nearest.empty() ? "" : "did you mean " + nearest + "? ") + "known are " + list);
}

}  // namespace

std::span<const LearningRateRow> learningRateTable() { return kTable; }

double learningRate(const LearningRateOptions& options, std::uint64_t step) {
  assert(step >= 1);
  const LearningRateRow& row = findRow(options.schedule);
  const std::uint64_t warmup = options.warmupSteps;
  if (step <= warmup) {
    return options.peak * static_cast<double>(step) / static_cast<double>(warmup);
  }
  const std::uint64_t after = options.totalSteps > warmup ? options.totalSteps - warmup : 1;
  const double progress = static_cast<double>(step - warmup - 1) / static_cast<double>(after);
  return options.peak * row.factor(std::min(progress, 1.0));
}

}  // namespace cleave
