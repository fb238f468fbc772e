// Divides a whole model among workers, as PipeDream's planner does: `plan --workers`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cleave {

struct WorkerPlanOptions {
  std::string workers;             // "4x4": machines x workers of each
  std::string profile;             // file path
  std::string rate;                // of a machine's link to the others, in each direction
  std::string insideRate;          // of a worker's link inside its machine; empty: `rate`
  std::uint32_t maxReplicas = 0;   // of a stage; 0: any number
  std::uint32_t batch = 0;         // samples per batch of a worker; 0: as the profile's
  std::uint64_t epochSamples = 0;  // 0: an epoch is not predicted
  bool json = false;
};

// Prints the plan. Throws UsageError.
int printWorkerPlan(const WorkerPlanOptions& options);

// A placeholder for the servers of each body, HOST:PORT+HOST:PORT if it has two.
std::vector<std::string> serverPlaceholders(std::span<const std::uint32_t> replicas);

}  // namespace cleave
