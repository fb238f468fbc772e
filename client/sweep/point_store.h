// What a sweep's folder keeps of its points: FOLDER/POINT/ is a point's run folder, and the
// result.json in it, which is written last and durably, says that the point is done.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "client/sweep/results.h"
#include "common/core/open_file.h"

namespace cleave {

struct PlannedPoint {
  GridPoint point;
  Facts facts;
  std::string device;  // the configuration's
  // What the point's figures depend on: its configuration with all defaults, as YAML, the link's,
  // and the server.
  std::string config;
  std::vector<std::string> link;
  std::string server;
};

struct StoredPoint {
  PointResult result;
  double seconds = 0;  // that running it took
};

// Of a point that is done. Throws UsageError where it was run with another configuration, link or
// server than is planned now, or where the file cannot be read.
std::optional<StoredPoint> loadPoint(const std::string& folder, const PlannedPoint& planned);

// How many points that are done lie in the folder beside those planned: another grid's.
std::size_t countOtherPoints(const std::string& folder, const std::vector<PlannedPoint>& planned);

// Throws RunError.
void storePoint(const std::string& folder, const PlannedPoint& planned, const StoredPoint& stored);

// Holds a sweep's folder for as long as it lives, so that no second sweep runs there.
class SweepFolder {
 public:
  // Makes the folder where there is none. Throws UsageError where it has other things than a
  // sweep, or another sweep runs there; RunError where it cannot be made.
  explicit SweepFolder(const std::string& folder);

 private:
  OpenFile lock_;
};

}  // namespace cleave
