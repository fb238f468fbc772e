// Writes the report of one or more runs as a single, self-contained page: no network access, no
// other file. See docs/report.md for its content.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/report/run_place.h"

namespace cleave {

// The page with its charts. `data`: see ReportData::page(); null: the page polls "data.json" beside
// it.
std::string reportPage(const nlohmann::json& data);

// Writes the report of these runs to `file` and returns ReportData::summary(). Throws RunError
// "cannot-write". If files of a run are missing or damaged, the page says so and shows the rest.
nlohmann::json writeReport(const std::vector<RunPlace>& runs, const std::string& file);

}  // namespace cleave
