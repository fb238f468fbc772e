// The folder for a run's files, on either side.
#pragma once

#include <cstddef>
#include <string>

#include "common/core/config.h"
#include "common/core/open_file.h"

namespace cleave {

// `metrics.rotate`: the size in bytes at which a run's CSV files are continued in new ones; 0 if
// it is "off". Throws UsageError.
std::size_t readRotateBytes(Config& config);

std::string libtorchVersion();  // such as "2.11.0"

// Throws UsageError "bad-run-id" unless the id is [a-z0-9][a-z0-9-]{0,63}.
void checkRunId(const std::string& id);

// Creates the folder and its parents. Throws UsageError "run-exists" if it exists and has more than
// what remains of a process that was killed before it began the run,
// RunError if it cannot be created or written to; `hint` tells the user what to do about it.
void makeRunFolder(const std::string& folder, const std::string& hint);

// Held while a process uses the folder, so that no other one does. Throws UsageError "run-in-use",
// RunError "cannot-write".
OpenFile lockRunFolder(const std::string& folder);

// Writes config.yaml and environment.json into the folder. `device`: ComputeDevice::description().
void writeRunDescription(const std::string& folder, const std::string& config, int threads,
                         const std::string& device);

}  // namespace cleave
