// Finds the setting that would shorten a run's steps most. The terminal, summary.json and the
// report all use this advice.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "client/train/settings.h"
#include "common/predict/bound.h"
#include "common/run/plan.h"

namespace cleave {

// Half the distance from the 10th to the 90th percentile of the step times, divided by their
// median. A predicted gain below it is indistinguishable from noise. Empty for fewer than 10 steps.
std::optional<double> stepSpread(std::vector<float> seconds);

struct MeasuredSteps {
  StepCosts costs;  // mean over the steps; hasRates()
  Bottleneck bottleneck = Bottleneck::clientCompute;
  double seconds = 0;            // measured mean
  std::optional<double> spread;  // see stepSpread()
  std::uint32_t lastBatch = 0;   // samples of an epoch's last batch
};

struct Advice {
  std::vector<std::string> settings;  // "codec=block:bits=4", each a value for --set; may be empty
  double saving = 0;                  // predicted share of a step; 0: no advice
  std::string caveat;                 // a disadvantage of the settings; empty if there is none
  std::string sentence;               // settings, saving and caveat as text
};

// Simulates the steps with other settings. If none of them saves more than the steps' spread (and 5
// %), simulates twice the limiting resource instead. If settings differ by less than the spread,
// one that costs no accuracy is preferred. Times the codecs, which takes about 10 ms.
Advice adviseOn(const MeasuredSteps& steps, const RunPlan& plan, const ClientSettings& settings);

nlohmann::json toJson(const Advice& advice);

}  // namespace cleave
