// Computes the figures at the top of a report and a sentence about the run's bottleneck.
#pragma once

#include <nlohmann/json.hpp>

#include "client/report/run_reader.h"

namespace cleave {

// Figures that the run's files do not provide are omitted.
nlohmann::json headline(RunReader& run);

}  // namespace cleave
