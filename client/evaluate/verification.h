// Runs some steps through servers, and the same steps with the whole model in this process, and
// compares losses, gradients and weights bit by bit.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "client/evaluate/comparison.h"
#include "client/run/prepare.h"

namespace cleave {

using Comparisons = std::map<std::string, Comparison>;

struct VerifyOptions {
  std::uint64_t steps = 3;  // at most those of an epoch
  double tolerance = 0;     // maximum relative difference; 0: bit-identical results are needed
};

// `clients`: the run's client, or the members of a cohort, each of which runs on a thread of its
// own; borrowed. `pooled`: the data of all, in their order. Throws the first error of a client.
Comparisons verifyRun(std::vector<PreparedRun>& clients, const Datasets& pooled,
                      const VerifyOptions& options);

}  // namespace cleave
