// The error for a connection that is older than another one of the same run.
#pragma once

#include <spdlog/fmt/fmt.h>

#include <cstdint>
#include <string>

#include "common/core/error.h"

namespace cleave {

inline RunError staleGeneration(const std::string& runId, std::uint64_t generation,
                                std::uint64_t known) {
  return RunError("stale-generation",
                  fmt::format("generation {} of the run {} is not newer than the last one, {}",
                              generation, runId, known),
                  "another client continues this run; if there is none, and the run's folder was "
                  "restored from a backup, add --take-over");
}

}  // namespace cleave
