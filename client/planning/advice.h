// Finds the setting that would shorten a run's steps most. The terminal, summary.json and the
// report all use this advice.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/config/settings.h"
#include "common/predict/bound.h"
#include "common/run/plan.h"

namespace cleave {

// Half the distance from the 10th to the 90th percentile of the step times, divided by their
// median. A predicted gain below this spread is indistinguishable from noise. Empty if there are
// fewer than 10 steps.
std::optional<double> stepSpread(std::vector<float> seconds);

struct MeasuredSteps {
  StepCosts costs;  // means over the steps; hasRates() must be true
  Bottleneck bottleneck = Bottleneck::clientCompute;
  double seconds = 0;            // measured mean duration of a step
  std::optional<double> spread;  // see stepSpread()
  std::uint32_t lastBatch = 0;   // number of samples in an epoch's last batch
  std::size_t full = 0;          // number of steps with a full batch, from which the spread is
};

struct Advice {
  std::vector<std::string> settings;  // for --set: "codec=block:bits=4"; may be empty
  double saving = 0;                  // predicted share of the step time; 0: no advice
  std::string caveat;                 // a disadvantage of the settings; may be empty
  std::string sentence;               // settings, saving and caveat as text
};

// Simulates the steps with other settings. If none of them saves more than 5 % and more than the
// spread, simulates a limiting resource that is twice as fast. Among settings whose savings differ
// by less than the spread, those that cost no accuracy are preferred. Measures the speed of the
// codecs, which takes about 10 ms per body. `plan`: the client's; `bodies`: the plan of each body.
Advice adviseOn(const MeasuredSteps& steps, const RunPlan& plan, std::span<const RunPlan> bodies,
                const ClientSettings& settings);

nlohmann::json toJson(const Advice& advice);

}  // namespace cleave
