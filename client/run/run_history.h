// Reads a run's history from its folder on the client: its identity, and the checkpoints from which
// it can continue.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/data/samples/data_digest.h"
#include "common/checkpoint/checkpoint_store.h"
#include "common/checkpoint/commits.h"
#include "common/record/run_files.h"

namespace cleave {

// The content of RUN/run.json.
struct RunRecordFile {
  std::string run;     // the run's id
  std::string server;  // like RunOptions::server; empty: local servers
  // The run's total numbers of steps and epochs, for programs that read this file; 0 in files
  // written by earlier versions.
  std::uint64_t steps = 0, epochs = 0;
  // SHA-256 of the folder's config.yaml in hex; empty in files written by earlier versions.
  std::string config;
  DataDigest train = {}, evaluation = {};  // of the sets that the run uses
};
void writeRunRecord(Files& files, const std::string& folder, const RunRecordFile& record);
// Throws UsageError "no-run" if `folder` is not the folder of a run.
RunRecordFile readRunRecord(Files& files, const std::string& folder);

// Whether the run has reached its end, so that it can only be continued for more steps.
bool isRunDone(Files& files, const std::string& folder);
// The run is no longer done, because it continues for more steps.
void reopenRun(Files& files, const std::string& folder);

// How often a run was continued, after it had lost a process, or a connection for too long.
struct ResumeCounts {
  std::uint64_t resumes = 0;      // continuations from a checkpoint or, without one, from step 0
  std::uint64_t stepsRedone = 0;  // steps that were repeated after a resume
};
struct ResumePoint {
  std::uint64_t step = 0;              // the run continues after this step
  std::uint64_t generation = 0;        // of the connection that continues it
  RecordedStep recorded;               // lastRecordedStep() of the client's folder
  std::vector<std::uint64_t> servers;  // the last step in each server's records
  bool beginsTurn = false;             // a turn begins as planned: this is not a resume
};
// Adds a resume, and returns the run's counts. They are in a file of their own, RUN/resumes.json,
// because a process may be killed again before its first checkpoint. If the file cannot be read or
// written, logs a warning.
ResumeCounts countResume(Files& files, const std::string& folder, const ResumePoint& point);

// The client's connections of the run. Throws RunError "bad-checkpoint" if their file is damaged.
RunConnections knownConnections(Files& files, const std::string& folder);
// Adds a Hello to this server (addHello()), stores the result durably, and returns it.
RunConnections nextHello(Files& files, const std::string& folder, std::size_t server);
// Stores that the server has accepted this Hello. If that fails, only logs it: the id is also kept
// among those that were sent.
void storeAccepted(Files& files, const std::string& folder, std::size_t server);
// Replaces a damaged file by one without connections. Call only before a Hello with take_over.
void repairConnections(Files& files, const std::string& folder);

}  // namespace cleave
