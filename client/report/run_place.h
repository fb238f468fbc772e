// Where the files of a run are, on this machine.
#pragma once

#include <string>
#include <vector>

namespace cleave {

struct RunPlace {
  std::string folder;  // the client's
  std::string server;  // the server's; empty: not found
};

// `run`: the client's folder, the folder above it, or a run id below runs/. The server's folder is
// that one of `servers` that has the same run; where none is given, it is looked for where both
// daemons leave their files on one machine. Throws UsageError where `run` is no folder, or has no
// file of a run.
RunPlace findRun(const std::string& run, const std::vector<std::string>& servers);

}  // namespace cleave
