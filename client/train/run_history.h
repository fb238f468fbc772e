// Reads a run's history from its folder on the client: its identity, and the checkpoints from which
// it can continue.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint_store.h"
#include "common/checkpoint/commits.h"

namespace cleave {

// The content of RUN/run.json.
struct RunRecordFile {
  std::string run;     // the run's id
  std::string server;  // as RunOptions::server; empty: local servers
  // The total numbers of the run, for programs that read its files; 0 in files written by earlier
  // versions.
  std::uint64_t steps = 0, epochs = 0;
};
void writeRunRecord(Files& files, const std::string& folder, const RunRecordFile& record);
// Throws UsageError "no-run" if `folder` is not the folder of a run.
RunRecordFile readRunRecord(Files& files, const std::string& folder);

// Whether the run has ended regularly, so that it cannot be resumed.
bool isRunDone(Files& files, const std::string& folder);

// Returns the commits whose checkpoint is present and undamaged, newest first. Logs a warning for
// each of the others. Throws RunError "bad-checkpoint" if the list itself is damaged.
std::vector<RunCommit> intactCommits(Files& files, const std::string& folder);

// Raises the run's generation by `step`, stores it durably, and returns it.
std::uint64_t raiseGeneration(Files& files, const std::string& folder, std::uint64_t step = 1);

}  // namespace cleave
