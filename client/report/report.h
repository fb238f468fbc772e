// The report of one run or of several, as one page that needs nothing else: no network, no other
// file. docs/report.md says what it shows.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/report/run_place.h"

namespace cleave {

// The page with its charts. `data`: as ReportData::page() has it; null: the page asks for it at
// "data.json" beside it, again and again.
std::string reportPage(const nlohmann::json& data);

// Writes the report of these runs into `file`. Returns what ReportData::summary() says. Throws
// RunError "cannot-write". Where files of a run are missing or damaged the page says so, and shows
// the rest.
nlohmann::json writeReport(const std::vector<RunPlace>& runs, const std::string& file);

}  // namespace cleave
