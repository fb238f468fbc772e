#include "client/report/records/run_place.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "common/core/error.h"
#include "common/core/yaml.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kServersSought = 64;

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

// The run id on the server with this number.
std::string idOnServer(const std::string& id, std::size_t number) {
  return number == 1 ? id : id + "-" + std::to_string(number);
}

// The number of the server with this run id; 0: it is another run.
std::size_t serverNumberOf(const std::string& serversId, const std::string& id) {
  for (std::size_t number = 1; number <= kServersSought; ++number) {
    if (serversId == idOnServer(id, number)) return number;
  }
  return 0;
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
    std::size_t number = serverNumberOf(runIdOf(server), id);
    if (number == 0 && servers.size() == 1) number = 1;
    if (number > 0) place.servers[number] = server;
  }
  return place;
}

std::map<std::size_t, std::string> findServerRuns(const std::string& folder,
                                                  const std::string& runId) {
  const fs::path client(folder);
  std::vector<fs::path> stores = {fs::path("store")};
  for (const fs::path& parent : {client.parent_path(), client}) {
    // Each server that the client has started has a store of its own.
    for (std::size_t number = kServersSought; number >= 1; --number) {
      stores.push_back(parent / idOnServer("server", number));
    }
  }
  std::map<std::size_t, std::string> servers;
  for (const fs::path& store : stores) {  // the last one has precedence
    std::error_code ignored;
    if (!fs::is_directory(store, ignored)) continue;
    for (std::size_t number = 1; number <= kServersSought; ++number) {
      const std::string found = belowStore(store, idOnServer(runId, number));
      if (!found.empty()) servers[number] = found;
    }
  }
  return servers;
}

}  // namespace cleave
