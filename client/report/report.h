// Writes the report of one or more runs as a single page that needs no network and no other file.
// docs/report.md describes its content.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/report/records/run_place.h"

namespace cleave {

// Returns the page. `data`: see ReportData::page(). If `data` is null, the page polls "data.json"
// at the same address.
std::string reportPage(const nlohmann::json& data);

// Writes the report of these runs to `file` and returns ReportData::summary(). Throws RunError
// "cannot-write". If files of a run are missing or damaged, the page says so and shows the rest.
nlohmann::json writeReport(const std::vector<RunPlace>& runs, const std::string& file);

}  // namespace cleave
