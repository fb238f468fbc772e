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

#include "client/sweep/grid.h"

namespace cleave {

// A column of results.csv and groups.csv; see docs/sweep.md.
struct SweepMetric {
  std::string_view name;
  std::string_view unit;
};
std::span<const SweepMetric> sweepMetrics();

using MetricValues = std::map<std::string, double>;  // by name; missing if unknown

// Transfers of one flow whose sizes differ by less than a fifth.
struct SizeClass {
  std::string flow;
  std::uint64_t transfers = 0;
  double bytes = 0;      // mean bytes on the wire
  double bandwidth = 0;  // bytes/s: sum of bytes divided by sum of wire_seconds
};

struct Measured {
  MetricValues metrics;
  std::string bottleneck;          // as in steps.csv; "" if unknown
  std::vector<SizeClass> classes;  // by flow, then by size
};

// Reads the results from the output of `train --json` and from the run's folder. Figures missing
// there are missing in the result.
Measured measureRun(const nlohmann::ordered_json& summary, const std::string& runFolder);

nlohmann::ordered_json toJson(const Measured& measured);
// Throws nlohmann's exceptions if the JSON was not written by toJson().
Measured measuredFromJson(const nlohmann::ordered_json& json);

// Properties that must match for a comparison with published figures, such as {"model",
// "mobilenet_v2"}.
using Facts = std::map<std::string, std::string>;

struct PointResult {
  SweepPoint point;
  enum class Status { toDo, done, failed } status = Status::toDo;
  std::string failure;  // a sentence
  Facts facts;
  Measured measured;
  std::optional<double> speedUp;  // images_per_second divided by that of the reference
};

struct Spread {
  double mean = 0;
  std::optional<double> stddev;  // sample std (n - 1); empty for a single value
};
// `values` must not be empty.
Spread spreadOf(const std::vector<double>& values);

// Points that differ only in run.seed.
struct SeedGroup {
  SweepPoint point;                         // without run.seed
  std::vector<const PointResult*> members;  // finished points only; borrowed
  std::map<std::string, Spread> metrics;
  std::optional<Spread> speedUp;
};
// Returns the groups in the order of the points.
std::vector<SeedGroup> groupBySeed(const std::vector<PointResult>& results);

// Sets each point's speed-up over the point that differs from it only in having the reference's
// values. `reference`: "KEY=VALUE" of the grid, at most one per key. Throws UsageError if the grid
// has no such value.
void setSpeedUps(std::vector<PointResult>& results, const std::vector<SweepAxis>& axes,
                 const std::vector<std::string>& reference);

}  // namespace cleave
