// The page's data as JSON. See docs/report.md for the meaning of each figure.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/report/run_reader.h"

namespace cleave {

// The runs of a report and the data of its page. Not thread-safe.
class ReportData {
 public:
  // Throws UsageError if a place has no run.
  explicit ReportData(const std::vector<RunPlace>& places);

  // Reads new content. Returns whether there was any.
  bool read();
  // All data of the page. `live`: the runs may still be running.
  nlohmann::json page(bool live);
  // For programs: headlines, flows, differences and problems, without the series.
  nlohmann::json summary();

 private:
  BucketAxes grids_;
  std::vector<std::unique_ptr<RunReader>> runs_;
};

}  // namespace cleave
