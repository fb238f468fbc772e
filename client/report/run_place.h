// Finds the files of a run on this machine.
#pragma once

#include <string>
#include <vector>

namespace cleave {

struct RunPlace {
  std::string folder;  // the client's folder
  std::string server;  // the server's folder; empty: not known yet
};

// `run`: the client's folder, its parent folder, or a run id in runs/. `servers`: folders of
// servers, one of which may have the same run. Throws UsageError if a folder is missing or has no
// files of a run.
RunPlace findRun(const std::string& run, const std::vector<std::string>& servers);

// Searches for the server's folder if both programs write to the same machine:
// <store>/<identity>/<run id>. Empty if it does not exist (yet).
std::string findServerRun(const std::string& folder, const std::string& runId);

}  // namespace cleave
