// Finds the files of a run on this machine.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace cleave {

struct RunPlace {
  std::string folder;  // the client's folder
  // The folders of the run on its servers, by the server's number from 1; empty: not known yet.
  std::map<std::size_t, std::string> servers;
};

// `run`: the client's folder of the run, the parent of a client's folder that is named `client`, or
// a run id in the folder runs/. `servers`: run folders on servers; one of them may belong to the
// same run. Throws UsageError if a folder is missing or has no files of a run.
RunPlace findRun(const std::string& run, const std::vector<std::string>& servers);

// Searches this machine for the servers' folders of the run, <store>/<identity>/<run id>; those of
// the second server have the run id RUN-2, and so on. Returns those that exist.
std::map<std::size_t, std::string> findServerRuns(const std::string& folder,
                                                  const std::string& runId);

}  // namespace cleave
