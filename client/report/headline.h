// The figures of a run that stand at the top of a report, and what held the run back, in words.
#pragma once

#include <nlohmann/json.hpp>

#include "client/report/run_reader.h"

namespace cleave {

// What no file says is left out.
nlohmann::json headline(RunReader& run);

}  // namespace cleave
