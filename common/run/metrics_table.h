// All metrics that client and server export to Prometheus. docs/metrics.md has the same table; a
// test compares the two.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/engine/schedule.h"

namespace cleave {

enum class MetricKind : std::uint8_t { counter, gauge, histogram };

struct MetricRow {
  std::string_view name;  // without prefix
  MetricKind kind;
  std::vector<std::string> labels;
  bool client, server;  // which programs export it
  std::string_view help;
  bool isProcess = false;  // a standard Prometheus name, which has no prefix
};

const std::vector<MetricRow>& metricTable();
// Requires that the name is in the table.
const MetricRow& metricRow(std::string_view name);
// Example: "cleave_server_steps_total"
std::string metricName(const MetricRow& row, Role role);

}  // namespace cleave
