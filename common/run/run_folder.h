// The folder for a run's files, on either side.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "common/config/config.h"
#include "common/core/open_file.h"

namespace cleave {

// `metrics.rotate`: the size in bytes at which a run's CSV files are continued in new ones; 0 for
// "off". Throws UsageError.
std::size_t readRotateBytes(Config& config);

std::string libtorchVersion();  // such as "2.11.0"

// Throws UsageError "bad-run-id" unless the id is [a-z0-9][a-z0-9-]{0,63}.
void checkRunId(const std::string& id);

// The files besides `lock` that the folder of a run that has not started may contain.
inline constexpr std::array<std::string_view, 5> kFilesBeforeStart = {
    "config.yaml", "environment.json", "log.txt", "probe.csv", "connections"};

// Creates the folder and its parents. An existing folder may contain only what a process leaves
// behind if it is killed before the run starts; otherwise throws UsageError "run-exists" with the
// hint `ifExists`. Throws UsageError "not-writable" if the folder cannot be created or written to;
// `instead` is an alternative to making it writable, for the hint.
void makeRunFolder(const std::string& folder, const std::string& ifExists,
                   const std::string& instead);

// Locks the folder while the result exists, so that no other process uses it. Throws RunError
// "run-in-use" and "cannot-write".
OpenFile lockRunFolder(const std::string& folder);
// The same, but returns nullopt if another process uses the run.
std::optional<OpenFile> tryLockRunFolder(const std::string& folder);

// Writes config.yaml and environment.json into the folder. `device`: ComputeDevice::description().
void writeRunDescription(const std::string& folder, const std::string& config, int threads,
                         const std::string& device);

}  // namespace cleave
