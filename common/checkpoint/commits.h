// A run's list of commits: the steps after which every part of the run has a durable checkpoint.
// The side that decides the steps keeps it: in RUN/checkpoints/commits.json, with a copy beside it.
// A run can continue only from the checkpoints in this list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/checkpoint/files.h"

namespace cleave {

struct RunCommit {
  std::uint64_t step = 0;
  std::string client;  // identifies the client's state (CheckpointInfo::sha256)
  // Saved::sha256 of each server, in the order of the bodies; "": another member of the cohort has
  // committed the checkpoint, and knows it.
  std::vector<std::string> servers;
};

// Returns the commits, newest first; empty if the list does not exist. Throws RunError
// "bad-checkpoint" if the list is damaged, or "run-unreadable".
std::vector<RunCommit> readCommits(Files& files, const std::string& runFolder);
// The list is durable when this returns. Throws RunError "cannot-write".
void writeCommits(Files& files, const std::string& runFolder,
                  const std::vector<RunCommit>& commits);
// Returns the commits whose checkpoint in this folder is present and undamaged, newest first. Logs
// a warning for each of the others. Throws the errors of readCommits().
std::vector<RunCommit> intactCommits(Files& files, const std::string& runFolder);

// The list while the run makes checkpoints.
class CommitLog {
 public:
  // `commits`: those that the run already has, newest first. `keep`: the number that remains.
  // `files` is borrowed.
  CommitLog(Files& files, std::string runFolder, std::vector<RunCommit> commits, std::size_t keep)
      : files_(files),
        runFolder_(std::move(runFolder)),
        keep_(keep),
        commits_(std::move(commits)) {}

  // One thread at a time. The commit is durable when this returns; commits of later steps, and
  // those that are too old, are no longer in the list. Throws RunError "cannot-write".
  void add(RunCommit commit);
  // Any thread. Newest first.
  std::vector<std::uint64_t> steps() const;

 private:
  Files& files_;
  const std::string runFolder_;
  const std::size_t keep_;
  mutable std::mutex mutex_;
  std::vector<RunCommit> commits_;  // guarded by mutex_
};

}  // namespace cleave
