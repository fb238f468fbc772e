// The options that describe a link: of `simulate` and `plan`.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/core/units.h"
#include "common/predict/bound.h"

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's name
class App;
}  // namespace CLI

namespace cleave {

struct LinkOptions {
  std::string rate, upRate, downRate;  // with units
  std::vector<std::string> latencies;  // one for all servers, or one per server
  std::string queue = "0B";
  bool separate = false;              // each server's link has a bandwidth of its own
  std::string edgeRate, edgeLatency;  // of links between servers; empty: as the client's
};
void addLinkOptions(CLI::App& command, LinkOptions& options);

struct LinkCosts {
  double rateUp = 0, rateDown = 0;     // bytes per second
  std::vector<Nanoseconds> latencies;  // one way; one for all servers, or one per server
  double queueBytes = 0;
  bool separate = false;
  double edgeRate = 0;                     // bytes per second
  std::optional<Nanoseconds> edgeLatency;  // nullopt: the higher latency of the two servers

  // Throws UsageError "bad-value" unless there is one latency, or one per server.
  void checkServers(std::size_t servers) const;
  // Requires a latency for each body, or one for all. Also sets the costs of the step's edges and
  // of the replicas' sum, if it has any.
  void applyTo(StepCosts& costs) const;
  nlohmann::ordered_json json() const;
  std::string text() const;  // "100 Mbit/s up, 100 Mbit/s down, 10 ms one way"
};
// Throws UsageError.
LinkCosts linkCosts(const LinkOptions& options);

}  // namespace cleave
