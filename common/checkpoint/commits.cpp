#include "common/checkpoint/commits.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/checkpoint/checkpoint_store.h"
#include "common/core/failpoint.h"

namespace cleave {
namespace {

std::string pathIn(const std::string& runFolder) { return runFolder + "/checkpoints/commits.json"; }

}  // namespace

std::vector<RunCommit> readCommits(Files& files, const std::string& runFolder) {
  const std::string path = pathIn(runFolder);
  const auto text = files.read(path);
  if (!text) return {};
  std::vector<RunCommit> commits;
  try {
    for (const auto& entry : nlohmann::json::parse(*text)) {
      RunCommit commit;
      commit.step = entry.at("step");
      commit.client = bytesOfHex(entry.at("client"));
      for (const auto& server : entry.at("servers")) commit.servers.push_back(bytesOfHex(server));
      commits.push_back(std::move(commit));
    }
  } catch (const nlohmann::json::exception& error) {
    throw RunError("bad-checkpoint", path + ": the list of commits is damaged: " + error.what(),
                   "begin again from step 0 with --from-start");
  }
  std::sort(commits.begin(), commits.end(),
            [](const auto& a, const auto& b) { return a.step > b.step; });
  return commits;
}

void writeCommits(Files& files, const std::string& runFolder,
                  const std::vector<RunCommit>& commits) {
  auto list = nlohmann::ordered_json::array();
  for (const RunCommit& commit : commits) {
    auto servers = nlohmann::ordered_json::array();
    for (const std::string& server : commit.servers) servers.push_back(hexOf(server));
    list.push_back({{"step", commit.step}, {"client", hexOf(commit.client)}, {"servers", servers}});
  }
  failpoint("commit");
  files.write(pathIn(runFolder), list.dump(1) + "\n");
  failpoint("committed");
}

}  // namespace cleave
