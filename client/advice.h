// The setting that would shorten a run's steps most. Terminal, summary.json and report all take it
// from here.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "client/settings.h"
#include "common/pipeline/bound.h"
#include "daemon/plan.h"

namespace cleave {

// Half the distance from the 10th to the 90th percentile of the steps' seconds, as a share of their
// median: a predicted gain below it cannot be told from chance. Nothing for fewer than 10 steps.
std::optional<double> stepSpread(std::vector<float> seconds);

struct MeasuredSteps {
  StepCosts costs;  // mean of the steps; hasRates()
  Bottleneck bottleneck = Bottleneck::clientCompute;
  double seconds = 0;            // mean, as measured
  std::optional<double> spread;  // as stepSpread()
  std::uint32_t lastBatch = 0;   // samples of an epoch's last batch
};

struct Advice {
  std::vector<std::string> settings;  // "codec=block:bits=4", each a value of --set; may be empty
  double saving = 0;                  // predicted share of a step; 0: there is nothing to advise
  std::string caveat;                 // a disadvantage of the settings; empty: none
  std::string sentence;               // settings, saving and caveat, for people
};

// Simulates the steps with other settings and, if none of them saves more than the steps' spread
// (and 5 %), with twice the resource that holds them back. If settings differ by less than the
// spread, one that costs no accuracy is preferred. Codecs are timed here, which takes about 10 ms.
Advice adviseOn(const MeasuredSteps& steps, const RunPlan& plan, const ClientSettings& settings);

nlohmann::json toJson(const Advice& advice);

}  // namespace cleave
