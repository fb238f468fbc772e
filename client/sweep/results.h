// What a point of a sweep came to, and what several seeds of one come to together.
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

// A column of results.csv and groups.csv; docs/sweep.md defines each.
struct SweepMetric {
  std::string_view name;
  std::string_view unit;
};
std::span<const SweepMetric> sweepMetrics();

using MetricValues = std::map<std::string, double>;  // by name; those that are known

// Transfers of one flow whose sizes differ by less than a fifth.
struct SizeClass {
  std::string flow;
  std::uint64_t transfers = 0;
  double bytes = 0;      // on the wire, mean
  double bandwidth = 0;  // bytes/s: all their bytes by all their wire_seconds
};

struct Measured {
  MetricValues metrics;
  std::string bottleneck;          // as in steps.csv; "" where none is known
  std::vector<SizeClass> classes;  // by flow, then size
};

// From what `train --json` printed, and from the run's folder. What is missing there is missing
// here.
Measured measureRun(const nlohmann::ordered_json& summary, const std::string& runFolder);

nlohmann::ordered_json toJson(const Measured& measured);
// Throws nlohmann's exceptions where it is none of toJson().
Measured measuredFromJson(const nlohmann::ordered_json& json);

// What a published figure must agree with a point in, such as {"model", "mobilenet_v2"}.
using Facts = std::map<std::string, std::string>;

struct PointResult {
  GridPoint point;
  enum class Status { toDo, done, failed } status = Status::toDo;
  std::string failure;  // a sentence
  Facts facts;
  Measured measured;
  std::optional<double> speedUp;  // images_per_second by those of the reference
};

struct Spread {
  double mean = 0;
  std::optional<double> deviation;  // of the sample: n - 1; nothing of one value
};
// Requires values.
Spread spreadOf(const std::vector<double>& values);

// Points that differ in nothing but run.seed.
struct SeedGroup {
  GridPoint point;                          // without run.seed
  std::vector<const PointResult*> members;  // those that are done; borrowed
  std::map<std::string, Spread> metrics;
  std::optional<Spread> speedUp;
};
// In the order of the points.
std::vector<SeedGroup> groupBySeed(const std::vector<PointResult>& results);

// Sets each point's speed-up: over the point that differs from it in the reference's values alone.
// `reference`: "KEY=VALUE" of the grid, one a key. Throws UsageError where the grid has no such.
void setSpeedUps(std::vector<PointResult>& results, const std::vector<GridAxis>& axes,
                 const std::vector<std::string>& reference);

}  // namespace cleave
