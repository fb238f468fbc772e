// What the page draws, as JSON: docs/report.md says what each figure means.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/report/run_reader.h"

namespace cleave {

// The runs of a report, and the data of its page. Not for several threads.
class ReportData {
 public:
  // Throws UsageError: a place without a run.
  explicit ReportData(const std::vector<RunPlace>& places);

  // Reads what is new. Returns whether there was anything.
  bool read();
  // All that the page draws. `live`: the runs may go on.
  nlohmann::json page(bool live);
  // For programs: headlines, flows, differences and problems, without the series.
  nlohmann::json summary();

 private:
  Grids grids_;
  std::vector<std::unique_ptr<RunReader>> runs_;
};

}  // namespace cleave
