// Collects the data of a report page as JSON. docs/report.md explains the figures.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "client/report/records/run_reader.h"

namespace cleave {

// The runs of a report and the data of its page. Not thread-safe.
class ReportData {
 public:
  // Throws UsageError if there is no run at one of the places.
  explicit ReportData(const std::vector<RunPlace>& places);

  // Reads new content. Returns whether there was any.
  bool read();
  // Returns all data of the page. `live`: whether the runs may still be in progress.
  nlohmann::json page(bool live);
  // Returns the data for programs: headlines, flows, differences and problems, without the series.
  nlohmann::json summary();

 private:
  BucketAxes grids_;
  std::vector<std::unique_ptr<RunReader>> runs_;
};

}  // namespace cleave
