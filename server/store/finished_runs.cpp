#include "server/store/finished_runs.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "common/checkpoint/checkpoint_store.h"
#include "common/core/error.h"
#include "common/run/run_folder.h"

namespace cleave {
namespace {

std::string markOf(const std::string& runFolder) { return runFolder + "/finished"; }

// Returns 0 if a session uses the run, or its checkpoints cannot be removed.
std::size_t removeCheckpointsOf(Files& files, const std::string& runFolder) {
  try {
    const OpenFile lock = lockRunFolder(runFolder);
    const std::size_t bytes = CheckpointStore(files, runFolder).removeAll();
    unmarkFinished(files, runFolder);
    return bytes;
  } catch (const Error&) {
    return 0;
  }
}

}  // namespace

void markFinished(Files& files, const std::string& runFolder) {
  files.write(markOf(runFolder), "");
}

void unmarkFinished(Files& files, const std::string& runFolder) { files.remove(markOf(runFolder)); }

std::size_t removeFinishedCheckpoints(Files& files, const std::string& identityFolder,
                                      std::size_t wanted) {
  std::vector<std::pair<std::int64_t, std::string>> finished;
  std::error_code error;
  std::filesystem::directory_iterator entry(identityFolder, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    const std::string folder = entry->path();
    const std::int64_t time = files.changeTime(markOf(folder));
    if (time != 0) finished.emplace_back(time, folder);
  }
  std::sort(finished.begin(), finished.end());
  std::size_t freed = 0;
  for (const auto& [time, folder] : finished) {
    if (freed >= wanted) break;
    freed += removeCheckpointsOf(files, folder);
  }
  return freed;
}

}  // namespace cleave
