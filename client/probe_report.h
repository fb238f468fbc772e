// A probe's result, for people and for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "common/pipeline/probe_result.h"

namespace cleave {

// A line a size, with what was skipped and the sentence behind it; at most 100 columns.
std::string probeTable(const ProbeResult& result);

// Medians, fits and the sentence; without the single transfers.
nlohmann::ordered_json probeJson(const ProbeResult& result);

}  // namespace cleave
