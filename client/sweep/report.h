// What a sweep shows and leaves: tables as text, CSV and JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/sweep/published.h"
#include "client/sweep/results.h"

namespace cleave {

struct SweepReport {
  std::vector<GridAxis> axes;
  std::vector<PointResult> results;
  std::vector<SeedGroup> groups;  // of `results`
  std::vector<PublishedRow> published;
  std::vector<ComparedFigure> compared;  // of `groups` and `published`
};

// Each with its header line; docs/sweep.md defines the columns.
std::string resultsCsv(const SweepReport& report);
std::string groupsCsv(const SweepReport& report);
std::string transferSizesCsv(const SweepReport& report);
std::string comparisonCsv(const SweepReport& report);

// For a terminal.
std::string tableText(const SweepReport& report);
nlohmann::ordered_json toJson(const SweepReport& report);
// For a browser: one file that needs no other, but links to POINT/report.html beside it.
std::string sweepPage(const SweepReport& report, const std::string& folder);

}  // namespace cleave
