// Computes the learning rate of each step; only the client decides it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/core/error.h"

namespace cleave {

struct LearningRateOptions {
  std::string schedule = "constant";  // a name in learningRateTable()
  double peak = 0.1;
  // During the warm-up the rate rises linearly, from peak / warmupSteps at step 1 to the peak at
  // step warmupSteps.
  std::uint64_t warmupSteps = 0;
  std::uint64_t totalSteps = 1;
  double end = 0;    // final rate of schedules that decay
  double power = 1;  // exponent of the schedule `polynomial`
};

struct LearningRateRow {
  std::string_view name;         // "cosine"
  std::string_view description;  // one line
  bool decays;                   // whether the rate decays to `end`
  bool hasPower;
  // The position of the rate between `end` (0) and the peak (1). `progress` is in [0, 1] and rises
  // from 0 after the warm-up.
  double (*factor)(const LearningRateOptions& options, double progress);
};
std::span<const LearningRateRow> learningRateTable();
// Throws UsageError for an unknown schedule and suggests the most similar name.
const LearningRateRow& findLearningRate(const std::string& name);

// `step` counts from 1. Progress is (step - warmupSteps - 1) / max(1, totalSteps - warmupSteps).
// Throws UsageError for an unknown schedule and suggests the most similar name.
double learningRate(const LearningRateOptions& options, std::uint64_t step);

}  // namespace cleave
