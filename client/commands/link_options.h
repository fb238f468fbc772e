// The options that describe a link: of `simulate` and `plan`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "common/core/units.h"
#include "common/predict/bound.h"

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's name
class App;
}  // namespace CLI

namespace cleave {

struct LinkOptions {
  std::string rate, upRate, downRate;  // with units
  std::string latency;
  std::string queue = "0B";
};
void addLinkOptions(CLI::App& command, LinkOptions& options);

struct LinkCosts {
  double rateUp = 0, rateDown = 0;  // bytes per second
  Nanoseconds latency{0};           // one way
  double queueBytes = 0;

  double latencySeconds() const { return std::chrono::duration<double>(latency).count(); }
  void applyTo(BodyCosts& body) const;
  nlohmann::ordered_json json() const;
  std::string text() const;  // "100 Mbit/s up, 100 Mbit/s down, 10 ms one way"
};
// Throws UsageError.
LinkCosts linkCosts(const LinkOptions& options);

}  // namespace cleave
