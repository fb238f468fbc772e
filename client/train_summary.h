// What a training ends with: its figures as JSON (summary.json, `train --json`) and as text.
#pragma once

#include <nlohmann/json.hpp>

#include "client/prepare.h"
#include "client/trainer.h"

namespace cleave {

// `seconds`: of the whole run. `hasModel`: model.safetensors stands in the run's folder. What could
// not be measured has no key. Times in seconds, sizes in bytes, rates in bytes a second.
nlohmann::json summariseTraining(const PreparedRun& run, const TrainResult& result,
                                 const LinkTotals& totals, double seconds, bool hasModel);

// To stdout. `probe` and `trace` are keys that the command adds.
void printSummary(const nlohmann::json& summary);

}  // namespace cleave
