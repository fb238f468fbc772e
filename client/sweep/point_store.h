// Stores the points of a sweep. FOLDER/POINT/ is the run folder of a point. Its file result.json is
// written last and durably, and marks the point as done.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "client/sweep/results.h"
#include "common/core/open_file.h"

namespace cleave {

struct PlannedPoint {
  SweepPoint point;
  Facts facts;
  std::string device;  // device of head and tail, from the configuration
  std::string model;   // its name, from the configuration
  // Everything that determines the point's figures: the configuration with all defaults as YAML,
  // the link's settings, and the server.
  std::string config;
  std::vector<std::string> link;
  std::string server;
  std::uint32_t skip = 0;  // data.skip, which is also in `config`
};

struct StoredPoint {
  PointResult result;
  double seconds = 0;  // duration of the run
};

// Returns the stored point, or nothing if it is not done. Throws UsageError if the point was run
// with a configuration, link or server that differs from `planned`, or if the file cannot be read.
// `completed` adds the keys that an earlier version did not have to its configuration.
std::optional<StoredPoint> loadPoint(
    const std::string& folder, const PlannedPoint& planned,
    const std::function<std::string(const std::string& config)>& completed);

// Whether the point was started with the plan `planned`, so that it can be continued.
// FOLDER/POINT.plan.json has the plan of a point that was started but is not done.
bool isBegun(const std::string& folder, const PlannedPoint& planned);
// The two functions below return after their change is durable. They throw RunError.
void storePlan(const std::string& folder, const PlannedPoint& planned);
void removePlan(const std::string& folder, const PlannedPoint& planned);

// The number of finished points in the folder that are not in `planned`.
std::size_t countOtherPoints(const std::string& folder, const std::vector<PlannedPoint>& planned);

// Throws RunError.
void storePoint(const std::string& folder, const PlannedPoint& planned, const StoredPoint& stored);

// Locks a sweep's folder for the lifetime of the object, so that no second sweep runs there.
class SweepFolder {
 public:
  // Creates the folder if necessary. Throws UsageError if the folder contains files other than
  // those of a sweep, or if another sweep is running in it. Throws RunError if the folder cannot be
  // created.
  explicit SweepFolder(const std::string& folder);

 private:
  OpenFile lock_;
};

}  // namespace cleave
