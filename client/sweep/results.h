// The results of a sweep's points, and statistics over several seeds.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/report/records/learning_curve.h"
#include "client/report/records/spread.h"
#include "client/sweep/grid.h"

namespace cleave {

// A column of results.csv and groups.csv; see docs/sweep.md.
struct SweepMetric {
  std::string_view name;
  std::string_view unit;
  const char* inSummary = nullptr;  // its place in the summary of `train --json`; null: computed
};
std::span<const SweepMetric> sweepMetrics();

using MetricValues = std::map<std::string, double>;  // by name; unknown values are missing

// Statistics of the transfers of one flow whose sizes differ by less than 20 %.
struct SizeClass {
  std::string flow;
  std::uint64_t transfers = 0;
  double bytes = 0;      // mean bytes on the wire
  double bandwidth = 0;  // bytes/s: sum of bytes divided by sum of wire_seconds
};

struct Measured {
  MetricValues metrics;
  LearningCurve curve;
  std::string bottleneck;          // a value of the column in steps.csv; "" if unknown
  std::vector<SizeClass> classes;  // by flow, then by size
};

// Reads the results from the output of `train --json` and from the run's folder. Figures that these
// do not contain are missing in the result.
Measured measureRun(const nlohmann::ordered_json& summary, const std::string& runFolder);

nlohmann::ordered_json toJson(const Measured& measured);
// Throws nlohmann's exceptions if the JSON was not written by toJson().
Measured measuredFromJson(const nlohmann::ordered_json& json);

// Properties of a point, such as {"model", "mobilenet_v2"}. They must match for a comparison with
// published figures.
using Facts = std::map<std::string, std::string>;

struct PointResult {
  SweepPoint point;
  enum class Status { toDo, done, failed } status = Status::toDo;
  std::string failure;  // a sentence if the point failed
  Facts facts;
  Measured measured;
  std::optional<double> speedUp;  // images_per_second divided by the reference's value
};

// Points that differ only in run.seed or data.fold.
struct SeedGroup {
  SweepPoint point;                         // without these keys
  std::vector<const PointResult*> members;  // the finished points of the group; borrowed
  std::map<std::string, Spread> metrics;
  std::optional<Spread> speedUp;
  std::string mainMetric;  // as in train.metrics; empty if the members have different ones
  std::vector<MeanCurvePoint> curve;
};
// Returns the groups in the order of the points.
std::vector<SeedGroup> groupBySeed(const std::vector<PointResult>& results);

// Sets the speed-up of each point over its reference point, which has the values in `reference` and
// otherwise the same values. `reference`: "KEY=VALUE" of the grid, at most one per key. Throws
// UsageError if the grid has no such value.
void setSpeedUps(std::vector<PointResult>& results, const std::vector<SweepAxis>& axes,
                 const std::vector<std::string>& reference);

}  // namespace cleave
