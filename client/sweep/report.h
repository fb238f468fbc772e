// Formats a sweep's results as text, CSV, JSON and an HTML page.
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

// The CSV files have a header line; docs/sweep.md describes their columns.
std::string resultsCsv(const SweepReport& report);
std::string groupsCsv(const SweepReport& report);
std::string transferSizesCsv(const SweepReport& report);
std::string comparisonCsv(const SweepReport& report);

// For a terminal.
std::string tableText(const SweepReport& report);
nlohmann::ordered_json toJson(const SweepReport& report);
// An HTML page without external resources. It links to the files POINT/report.html in its folder.
std::string sweepPage(const SweepReport& report, const std::string& folder);

}  // namespace cleave
