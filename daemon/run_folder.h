// The folder a run leaves its files in, on either side.
#pragma once

#include <cstddef>
#include <string>

#include "common/core/config.h"

namespace cleave {

// `metrics.rotate`: the size in bytes from which on a run's CSV files are continued in new ones; 0
// where it is "off". Throws UsageError.
std::size_t readRotateBytes(Config& config);

std::string libtorchVersion();  // "2.11.0"

// Throws UsageError "bad-run-id" unless the id is [a-z0-9][a-z0-9-]{0,63}.
void checkRunId(const std::string& id);

// Makes the folder with its parents. Throws UsageError "run-exists" where it is there and not
// empty, RunError where it can't be made or written to; `fix` says what the user can do about it.
void makeRunFolder(const std::string& folder, const std::string& fix);

// Writes config.yaml and environment.json into it. `device`: ComputeDevice::description().
void writeRunDescription(const std::string& folder, const std::string& config, int threads,
                         const std::string& device);

}  // namespace cleave
