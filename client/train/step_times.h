// Reads and writes the JSON file with the step times of `simulate`: seconds and bytes, which do not
// depend on the link.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/predict/bound.h"

namespace cleave {

struct StepTimes {
  StepCosts costs;          // without rates and latency
  std::uint32_t batch = 0;  // samples per batch
};

nlohmann::ordered_json toJson(const StepTimes& times);
// Throws UsageError.
std::vector<StepTimes> readTimes(const std::string& path);
// Throws RunError.
void writeTimes(const std::string& path, const std::vector<StepTimes>& times);

}  // namespace cleave
