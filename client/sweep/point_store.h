// Stores the points of a sweep: FOLDER/POINT/ is a point's run folder. The result.json in it is
// written last and durably, and marks the point as done.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "client/sweep/results.h"
#include "common/core/open_file.h"

namespace cleave {

struct PlannedPoint {
  SweepPoint point;
  Facts facts;
  std::string device;  // from the configuration
  // Everything that determines the point's figures: the configuration with all defaults as YAML,
  // the link's settings, and the server.
  std::string config;
  std::vector<std::string> link;
  std::string server;
};

struct StoredPoint {
  PointResult result;
  double seconds = 0;  // duration of the run
};

// The stored point; empty if it is not done. Throws UsageError if it was run with another
// configuration, link or server than planned now, or if the file cannot be read.
std::optional<StoredPoint> loadPoint(const std::string& folder, const PlannedPoint& planned);

// FOLDER/POINT.plan.json has the plan of a point that was begun, but is not done. Returns whether
// that plan equals `planned`, so that the point can be continued.
bool isBegun(const std::string& folder, const PlannedPoint& planned);
// Durable on return. Throw RunError.
void storePlan(const std::string& folder, const PlannedPoint& planned);
void removePlan(const std::string& folder, const PlannedPoint& planned);

// The number of finished points in the folder that are not in this grid.
std::size_t countOtherPoints(const std::string& folder, const std::vector<PlannedPoint>& planned);

// Throws RunError.
void storePoint(const std::string& folder, const PlannedPoint& planned, const StoredPoint& stored);

// Locks a sweep's folder for the lifetime of the object, so that no second sweep runs there.
class SweepFolder {
 public:
  // Creates the folder if necessary. Throws UsageError if it has content other than a sweep's, or
  // another sweep is running there; RunError if it cannot be created.
  explicit SweepFolder(const std::string& folder);

 private:
  OpenFile lock_;
};

}  // namespace cleave
