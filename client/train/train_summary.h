// The final figures of a training run, as JSON (summary.json, `train --json`) and as text.
#pragma once

#include <nlohmann/json.hpp>

#include "client/train/prepare.h"
#include "client/train/trainer.h"

namespace cleave {

// `hasModel`: model.safetensors exists in the run's folder.
// Figures that could not be measured are omitted. Times in seconds, sizes in bytes, rates in bytes
// per second.
nlohmann::json summariseTraining(const PreparedRun& run, const TrainResult& result,
                                 const RunSpent& spent, bool hasModel);

// Prints to stdout. The command adds the keys `probe` and `trace`.
void printSummary(const nlohmann::json& summary);

}  // namespace cleave
