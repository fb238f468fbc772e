// Reads a run's history from its folder on the client: its identity, and the checkpoints from which
// it can continue.
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
  // The run's totals, for programs that read its files; 0 in files of earlier versions.
  std::uint64_t steps = 0, epochs = 0;
};
void writeRunRecord(const std::string& folder, const RunRecordFile& record);
// Throws UsageError "no-run" if the folder is not that of a run.
RunRecordFile readRunRecord(const std::string& folder);

// The commits whose checkpoint is present and undamaged, newest first. The others are logged as
// warnings. Throws RunError "bad-checkpoint" if the list itself is damaged.
std::vector<RunCommit> intactCommits(Files& files, const std::string& folder);

// The last training step in the last rows of steps.csv; 0 if there is none.
std::uint64_t lastRecordedStep(const std::string& folder);

// Raises the run's generation by `step`, stores it durably, and returns it.
std::uint64_t raiseGeneration(Files& files, const std::string& folder, std::uint64_t step = 1);

}  // namespace cleave
