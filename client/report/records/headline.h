// Computes the figures at the top of a report and a sentence about the run's bottleneck.
#pragma once

#include <nlohmann/json.hpp>

#include "client/report/records/run_reader.h"

namespace cleave {

// What the run has spent: the figures of its summary, which `train` printed. Until the run has
// ended, the same figures computed from its rows.
RunTotals runTotals(RunReader& run);

// Figures that the run's files do not provide are omitted.
nlohmann::json headline(RunReader& run);

}  // namespace cleave
