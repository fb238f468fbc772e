// What the folder of a run at the client says about its past: which run it is, and the checkpoints
// from which it can continue.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint_store.h"
#include "common/checkpoint/commits.h"

namespace cleave {

// RUN/run.json.
struct RunRecordFile {
  std::string run;     // its id
  std::string server;  // HOST:PORT; empty: a local server
};
void writeRunRecord(const std::string& folder, const RunRecordFile& record);
// Throws UsageError "no-run" if the folder is not that of a run.
RunRecordFile readRunRecord(const std::string& folder);

// The commits whose checkpoint is here, and undamaged, newest first. Those that are not are named
// in the log. Throws RunError "bad-checkpoint" if the list itself is damaged.
std::vector<RunCommit> intactCommits(Files& files, const std::string& folder);

// The next generation of the run, durable on return; it exceeds the last one by `step`.
std::uint64_t raiseGeneration(Files& files, const std::string& folder, std::uint64_t step = 1);

}  // namespace cleave
