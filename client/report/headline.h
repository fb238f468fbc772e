// The figures at the top of a report, and a sentence on what limited the run.
#pragma once

#include <nlohmann/json.hpp>

#include "client/report/run_reader.h"

namespace cleave {

// Figures that no file provides are omitted.
nlohmann::json headline(RunReader& run);

}  // namespace cleave
