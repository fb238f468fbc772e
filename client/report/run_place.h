// Finds the files of a run on this machine.
#pragma once

#include <string>
#include <vector>

namespace cleave {

struct RunPlace {
  std::string folder;  // the client's folder
  std::string server;  // the server's folder of the run; empty: not known yet
};

// `run`: the client's folder of the run, the parent of a client's folder that is named `client`, or
// a run id in the folder runs/. `servers`: run folders on servers; one of them may belong to the
// same run. Throws UsageError if a folder is missing or has no files of a run.
RunPlace findRun(const std::string& run, const std::vector<std::string>& servers);

// Searches this machine for the server's folder of the run, <store>/<identity>/<run id>. Returns ""
// if it does not exist (yet).
std::string findServerRun(const std::string& folder, const std::string& runId);

}  // namespace cleave
