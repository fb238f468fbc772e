// Formats a probe's result as text and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "common/link/probe/probe_result.h"

namespace cleave {

// A table with one line per size, followed by the skipped sizes and a closing sentence. Lines have
// 100 columns at most.
std::string probeTable(const ProbeResult& result);

// The medians, the fits and the closing sentence. Omits the individual transfers.
nlohmann::ordered_json probeJson(const ProbeResult& result);

}  // namespace cleave
