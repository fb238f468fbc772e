#include "common/checkpoint/commits.h"

#include <algorithm>
#include <cassert>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/checkpoint/checkpoint_store.h"
#include "common/core/failpoint.h"
#include "common/core/log.h"
#include "common/files/sha256.h"

namespace cleave {
namespace {

// The two copies are written one after the other, so that a crash leaves at least one intact.
constexpr const char* kNames[] = {"commits.json", "commits.copy.json"};

std::string pathIn(const std::string& runFolder, const char* name) {
  return runFolder + "/checkpoints/" + name;
}

std::string digestOf(const nlohmann::json& json) {
  std::string digest = bytesOfHex(json.get<std::string>());
  if (digest.size() != kSha256Bytes)
    throw RunError("bad-checkpoint", "a digest is too short").about("--resume");
  return digest;
}

std::vector<RunCommit> parsed(const std::string& text, const std::string& path) {
  std::vector<RunCommit> commits;
  try {
    for (const auto& entry : nlohmann::json::parse(text)) {
      RunCommit commit;
      commit.step = entry.at("step");
      commit.client = digestOf(entry.at("client"));
      for (const auto& server : entry.at("servers")) {
        const bool isKnown = !server.get<std::string>().empty();
        commit.servers.push_back(isKnown ? digestOf(server) : "");
      }
      if (!commit.servers.empty()) commits.push_back(std::move(commit));
    }
  } catch (const nlohmann::json::exception& error) {
    throw RunError("bad-checkpoint", path + ": the list of commits is damaged: " + error.what(),
                   "start over from step 0 with --from-start")
        .about("--resume");
  }
  std::sort(commits.begin(), commits.end(),
            [](const auto& a, const auto& b) { return a.step > b.step; });
  return commits;
}

}  // namespace

std::vector<RunCommit> readCommits(Files& files, const std::string& runFolder) {
  std::optional<RunError> damage;
  for (const char* const name : kNames) {
    const std::string path = pathIn(runFolder, name);
    try {
      if (const auto text = files.read(path)) return parsed(*text, path);
    } catch (const RunError& error) {
      if (!damage) damage.emplace(error, error.what(), error.hint());
    }
  }
  if (damage) throw RunError(*damage);
  return {};
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
  for (const char* const name : kNames) {
    files.write(pathIn(runFolder, name), list.dump(1) + "\n");
    failpoint("committed");
  }
}

std::vector<RunCommit> intactCommits(Files& files, const std::string& runFolder) {
  const CheckpointStore store(files, runFolder);
  std::vector<RunCommit> intact;
  for (RunCommit& commit : readCommits(files, runFolder)) {
    if (store.find(commit.step, commit.client)) {
      intact.push_back(std::move(commit));
    } else {
      processLog()->warn("the checkpoint of step {} in {} is missing or damaged", commit.step,
                         runFolder);
    }
  }
  return intact;
}

void CommitLog::add(RunCommit commit) {
  assert(!commit.servers.empty());
  std::vector<RunCommit> commits = {std::move(commit)};
  for (const RunCommit& older : commits_) {  // only this function changes them
    if (older.step < commits.front().step && commits.size() < keep_) commits.push_back(older);
  }
  assert(commits.size() <= keep_);
  writeCommits(files_, runFolder_, commits);
  const std::lock_guard lock(mutex_);
  commits_ = std::move(commits);
}

std::vector<std::uint64_t> CommitLog::steps() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> steps;
  for (const RunCommit& commit : commits_) steps.push_back(commit.step);
  return steps;
}

}  // namespace cleave
