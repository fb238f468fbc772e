// Where the files of a run are, on this machine.
#pragma once

#include <string>
#include <vector>

namespace cleave {

struct RunPlace {
  std::string folder;  // the client's
  std::string server;  // the server's; empty: to be looked for
};

// `run`: the client's folder, the folder above it, or a run id below runs/. `servers`: folders of
// servers, one of which may have the same run. Throws UsageError where a folder is not there, or
// has no file of a run.
RunPlace findRun(const std::string& run, const std::vector<std::string>& servers);

// Looks for the server's folder where both daemons leave their files on one machine:
// <store>/<identity>/<run id>. Empty: it is not there, or not yet.
std::string findServerRun(const std::string& folder, const std::string& runId);

}  // namespace cleave
