#include "client/train/run_history.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/core/log.h"

namespace cleave {
namespace {

std::string recordPath(const std::string& folder) { return folder + "/run.json"; }

}  // namespace

void writeRunRecord(Files& files, const std::string& folder, const RunRecordFile& record) {
  const nlohmann::ordered_json json = {{"run", record.run},
                                       {"server", record.server},
                                       {"steps", record.steps},
                                       {"epochs", record.epochs}};
  files.write(recordPath(folder), json.dump(2) + "\n");
}

RunRecordFile readRunRecord(Files& files, const std::string& folder) {
  const auto refuse = [&](const std::string& why) {
    return UsageError("no-run", folder + " is not the folder of a run: " + why,
                      "give the run's folder, such as runs/RUN");
  };
  const auto text = files.read(recordPath(folder));
  if (!text) throw refuse("it has no run.json");
  try {
    const auto json = nlohmann::json::parse(*text);
    return {json.at("run"), json.at("server"), json.value("steps", std::uint64_t{0}),
            json.value("epochs", std::uint64_t{0})};
  } catch (const nlohmann::json::exception& error) {
    throw refuse(std::string("run.json is damaged: ") + error.what());
  }
}

bool isRunDone(Files& files, const std::string& folder) {
  return files.read(folder + "/summary.json").has_value();
}

std::vector<RunCommit> intactCommits(Files& files, const std::string& folder) {
  const CheckpointStore store(files, folder);
  std::vector<RunCommit> intact;
  for (RunCommit& commit : readCommits(files, folder)) {
    if (store.find(commit.step, commit.client)) {
      intact.push_back(std::move(commit));
    } else {
      processLog()->warn("the checkpoint of step {} in {} is missing or damaged", commit.step,
                         folder);
    }
  }
  return intact;
}

std::uint64_t raiseGeneration(Files& files, const std::string& folder, std::uint64_t step) {
  CheckpointStore store(files, folder);
  const std::uint64_t next = store.generation() + step;
  store.setGeneration(next);
  return next;
}

}  // namespace cleave
