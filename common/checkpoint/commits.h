// The client's list of commits: the steps after which every part of the run has a durable
// checkpoint. It is stored in RUN/checkpoints/commits.json, with a copy beside it. A run can
// continue only from the checkpoints in this list.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/checkpoint/files.h"

namespace cleave {

struct RunCommit {
  std::uint64_t step = 0;
  std::string client;                // identifies the client's state (CheckpointInfo::sha256)
  std::vector<std::string> servers;  // Saved::sha256 of each server, in the order of the bodies
};

// Returns the commits, newest first; empty if the list does not exist. Throws RunError
// "bad-checkpoint" if the list is damaged, or "run-unreadable".
std::vector<RunCommit> readCommits(Files& files, const std::string& runFolder);
// The list is durable when this returns. Throws RunError "cannot-write".
void writeCommits(Files& files, const std::string& runFolder,
                  const std::vector<RunCommit>& commits);

}  // namespace cleave
