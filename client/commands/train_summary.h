// The final figures of a training run, as JSON (summary.json, `train --json`) and as text.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "client/run/prepare.h"
#include "client/train/trainer.h"

namespace cleave {

// `hasModel`: model.safetensors exists in the run's folder. Figures that could not be measured are
// omitted. Times are in seconds, sizes in bytes, and rates in bytes per second.
nlohmann::json summariseTraining(const PreparedRun& run, const TrainResult& result,
                                 const RunSpent& spent, bool hasModel);

// The summary's line with the mean and peak bandwidth. A run that is hardly longer than a window of
// the peak has too few of them for a maximum: a peak below the mean is left out.
std::string bandwidthText(const nlohmann::json& summary);

// Prints the summary to stdout. `summary` may also contain the keys `probe` and `trace`, which the
// command adds.
void printSummary(const nlohmann::json& summary);

}  // namespace cleave
