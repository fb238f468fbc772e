// Formats a sweep's results: tables as text, CSV and JSON, and a page.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/sweep/published.h"
#include "client/sweep/results.h"

namespace cleave {

struct SweepReport {
  std::vector<SweepAxis> axes;
  std::vector<PointResult> results;
  std::vector<SeedGroup> groups;  // pointers into `results`
  std::vector<PublishedRow> published;
  std::vector<ComparedFigure> compared;  // pointers into `groups` and `published`
};

// With a header line; see docs/sweep.md for the columns.
std::string resultsCsv(const SweepReport& report);
std::string groupsCsv(const SweepReport& report);
std::string transferSizesCsv(const SweepReport& report);
std::string comparisonCsv(const SweepReport& report);

// For a terminal.
std::string tableText(const SweepReport& report);
nlohmann::ordered_json toJson(const SweepReport& report);
// For a browser: a self-contained file, except for its links to POINT/report.html beside it.
std::string sweepPage(const SweepReport& report, const std::string& folder);

}  // namespace cleave
