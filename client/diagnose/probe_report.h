// Formats a probe's result as text and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "common/link/probe_result.h"

namespace cleave {

// One line per size, the skipped sizes and the closing sentence; at most 100 columns.
std::string probeTable(const ProbeResult& result);

// Medians, fits and the sentence; without the individual transfers.
nlohmann::ordered_json probeJson(const ProbeResult& result);

}  // namespace cleave
