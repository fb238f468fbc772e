// Every metric that the daemons offer to Prometheus: docs/metrics.md has the same table, which a
// test holds against this one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/pipeline/schedule.h"

namespace cleave {

enum class MetricKind : std::uint8_t { counter, gauge, histogram };

struct MetricRow {
  std::string_view name;  // without prefix
  MetricKind kind;
  std::vector<std::string> labels;
  bool client, server;  // who has it
  std::string_view help;
  bool isProcess = false;  // a name that all of Prometheus's world uses: it has no prefix
};

const std::vector<MetricRow>& metricTable();
// Requires that it is in the table.
const MetricRow& metricRow(std::string_view name);
// "cleave_server_steps_total"
std::string metricName(const MetricRow& row, Role role);

}  // namespace cleave
