#include "client/report/run_place.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "common/core/error.h"
#include "common/core/yaml.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

constexpr std::array kFiles = {"transfers.csv", "transfers.1.csv", "steps.csv",
                               "epochs.csv",    "config.yaml",     "environment.json"};

bool hasRun(const fs::path& folder) {
  return std::any_of(kFiles.begin(), kFiles.end(),
                     [&](const char* file) { return fs::exists(folder / file); });
}

// Returns the run id in the first row of steps.csv or transfers.csv; "" if there is no such row.
// Both sides use the same run id.
std::string runIdOf(const fs::path& folder) {
  for (const char* file : {"steps.csv", "transfers.csv", "transfers.1.csv"}) {
    std::ifstream stream(folder / file);
    std::string header, row;
    if (!std::getline(stream, header) || !std::getline(stream, row)) continue;
    if (!header.starts_with("time,run,")) continue;
    const std::size_t begin = row.find(',');
    if (begin == std::string::npos) continue;
    const std::size_t end = row.find(',', begin + 1);
    if (end != std::string::npos) return row.substr(begin + 1, end - begin - 1);
  }
  return "";
}

// Whether this is a server's folder of a run. Only the client's steps.csv has the rates of both
// directions and the loss.
bool isServers(const fs::path& folder) {
  std::string header;
  std::getline(std::ifstream(folder / "steps.csv"), header);
  return header.starts_with("time,run,") && header.find(",loss") == std::string::npos;
}

// Returns the run's folder in a server's store, DIR/<identity>/<run id>.
std::string belowStore(const fs::path& store, const std::string& id) {
  std::error_code ignored;
  for (const auto& identity : fs::directory_iterator(store, ignored)) {
    if (fs::is_directory(identity.path() / id, ignored)) return identity.path() / id;
  }
  return "";
}

}  // namespace

RunPlace findRun(const std::string& run, const std::vector<std::string>& servers) {
  RunPlace place;
  for (const fs::path& folder : {fs::path(run), fs::path(run) / "client", fs::path("runs") / run,
                                 fs::path("runs") / run / "client"}) {
    if (fs::is_directory(folder) && hasRun(folder)) {
      place.folder = (folder / "").lexically_normal().parent_path();  // without a trailing slash
      break;
    }
  }
  if (place.folder.empty()) {
    const std::string named = quotedForError(run);
    if (!fs::is_directory(run)) {
      throw UsageError("no-run", "there is no run " + named,
                       "give the folder that `train` printed, such as runs/<run id>");
    }
    if (fs::exists(fs::path(run) / "sweep.json")) {
      throw UsageError("no-run", named + " is a sweep's folder",
                       "open " + run + "/report.html, or draw its figures: cleave-client report " +
                           run + " --figures figures");
    }
    throw UsageError("no-run", named + " contains no run files such as steps.csv",
                     "give the folder that `train` printed, such as runs/<run id>");
  }
  if (isServers(place.folder)) {
    throw UsageError("no-run", quotedForError(place.folder) + " is the server's folder of a run",
                     "give the client's folder as RUN, and this one as --server-run");
  }
  const std::string id = runIdOf(place.folder);
  for (const std::string& server : servers) {
    if (!fs::is_directory(server) || !hasRun(server)) {
      throw UsageError("no-run",
                       "--server-run " + quotedForError(server) + " contains no run files",
                       "give the folder <store>/<identity>/<run id> of the server");
    }
    if (servers.size() == 1 || runIdOf(server) == id) place.server = server;
  }
  return place;
}

std::string findServerRun(const std::string& folder, const std::string& runId) {
  const fs::path client(folder);
  for (const fs::path& store :
       {client / "server", client.parent_path() / "server", fs::path("store")}) {
    const std::string found = belowStore(store, runId);
    if (!found.empty()) return found;
  }
  return "";
}

}  // namespace cleave
