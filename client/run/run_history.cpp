#include "client/run/run_history.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
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
                                       {"epochs", record.epochs},
                                       {"config", record.config},
                                       {"train_data", toJson(record.train)},
                                       {"evaluation_data", toJson(record.evaluation)}};
  files.write(recordPath(folder), json.dump(2) + "\n");
}

RunRecordFile readRunRecord(Files& files, const std::string& folder) {
  const auto refuse = [&](const std::string& why) {
    return UsageError("no-run", folder + " is not the folder of a run: " + why,
                      "give the run's folder, such as runs/RUN")
        .about("--resume");
  };
  std::optional<std::string> text;
  try {
    text = files.read(recordPath(folder));
  } catch (const RunError& error) {
    throw refuse(error.what());
  }
  if (!text) throw refuse("it has no run.json");
  try {
    const auto json = nlohmann::json::parse(*text);
    return {json.at("run"),
            json.at("server"),
            json.value("steps", std::uint64_t{0}),
            json.value("epochs", std::uint64_t{0}),
            json.value("config", ""),
            dataDigestFrom(json.value("train_data", nlohmann::json())),
            dataDigestFrom(json.value("evaluation_data", nlohmann::json()))};
  } catch (const nlohmann::json::exception& error) {
    throw refuse(std::string("run.json is damaged: ") + error.what());
  }
}

bool isRunDone(Files& files, const std::string& folder) {
  return files.read(folder + "/summary.json").has_value();
}

void reopenRun(Files& files, const std::string& folder) { files.remove(folder + "/summary.json"); }

ResumeCounts countResume(Files& files, const std::string& folder, const ResumePoint& point) {
  const std::string path = folder + "/resumes.json";
  ResumeCounts counts;
  ResumePoint previous;
  try {
    if (const auto text = files.read(path)) {
      const auto json = nlohmann::json::parse(*text);
      previous.generation = json.at("generation");
      previous.servers = json.at("servers_steps").get<std::vector<std::uint64_t>>();
      counts = {json.at("resumes"), json.at("steps_redone")};
    }
  } catch (const nlohmann::json::exception& error) {
    processLog()->warn("{} is damaged, so resumes are counted from 0: {}", path, error.what());
  } catch (const RunError& error) {
    processLog()->warn("resumes are counted from 0: {}", error.what());
  }
  // A side that has recorded no step since the previous resume does not count: its last row was
  // counted then.
  std::uint64_t last = 0;
  if (point.recorded.generation >= previous.generation) last = point.recorded.step;
  previous.servers.resize(point.servers.size());
  for (std::size_t b = 0; b < point.servers.size(); ++b) {
    if (point.servers[b] != previous.servers[b]) last = std::max(last, point.servers[b]);
  }
  if (!point.beginsTurn) {
    ++counts.resumes;
    if (last > point.step) counts.stepsRedone += last - point.step;
  }
  try {
    const nlohmann::ordered_json json = {{"resumes", counts.resumes},
                                         {"steps_redone", counts.stepsRedone},
                                         {"generation", point.generation},
                                         {"servers_steps", point.servers}};
    files.write(path, json.dump() + "\n");
  } catch (const RunError& error) {
    processLog()->warn("the summary's resumes and steps_redone will be wrong: {}", error.what());
  }
  return counts;
}

RunConnections knownConnections(Files& files, const std::string& folder) {
  auto known = CheckpointStore(files, folder).connections();
  if (known) return *std::move(known);
  throw RunError("bad-checkpoint", folder + "/connections is damaged",
                 "if no other client has continued this run, add --take-over")
      .about("--resume");
}

RunConnections nextHello(Files& files, const std::string& folder, std::size_t server) {
  RunConnections own = knownConnections(files, folder);
  addHello(own, server);
  CheckpointStore(files, folder).setConnections(own);
  return own;
}

void storeAccepted(Files& files, const std::string& folder, std::size_t server) {
  try {
    RunConnections own = knownConnections(files, folder);
    acceptHello(own, server);
    CheckpointStore(files, folder).setConnections(own);
  } catch (const RunError& error) {
    processLog()->warn("{}", error.what());
  }
}

void repairConnections(Files& files, const std::string& folder) {
  CheckpointStore store(files, folder);
  if (!store.connections()) store.setConnections({});
}

}  // namespace cleave
