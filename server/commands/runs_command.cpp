// cleave-server runs: lists and removes the runs in the store.
#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "common/checkpoint/checkpoint_store.h"
#include "common/core/durable.h"
#include "common/core/log.h"
#include "common/core/printable.h"
#include "common/core/units.h"
#include "common/program/program.h"
#include "common/run/run_folder.h"
#include "server/commands/commands.h"
#include "server/config/settings.h"
#include "server/store/age.h"
#include "server/store/disk_share.h"
#include "server/store/store_folders.h"

namespace cleave {
namespace {

struct RunsOptions {
  CommonOptions common;
  std::string identity;  // empty: all
  std::string run;       // to remove
  std::string older;     // "30d": removes all runs that have not changed for this long
  bool json = false;
};

namespace fs = std::filesystem;
using Days = std::chrono::duration<double, std::ratio<86400>>;

struct StoredRunInfo {
  std::string identity, run, folder;
  std::size_t bytes = 0;
  std::uint64_t generation = 0;
  std::uint64_t checkpoint = 0;  // step of the newest checkpoint; 0: none
  double days = 0;               // days since one of its files last changed
  bool isInUse = false;
};

std::string storeOf(const CommonOptions& options) {
  Config config = loadConfig(options);
  return readServerSettings(config).store;
}

double daysSinceChange(const std::string& folder) {
  std::error_code error;
  fs::file_time_type newest = fs::last_write_time(folder, error);
  for (const auto& entry : fs::recursive_directory_iterator(folder, error)) {
    std::error_code ignored;
    newest = std::max(newest, entry.last_write_time(ignored));
  }
  return Days(fs::file_time_type::clock::now() - newest).count();
}

StoredRunInfo infoOf(const std::string& identity, const fs::path& folder) {
  StoredRunInfo info;
  info.identity = identity;
  info.run = folder.filename().string();
  info.folder = folder.string();
  info.bytes = folderBytes(info.folder);
  const CheckpointStore store(diskFiles(), info.folder);
  const auto checkpoints = store.list();
  if (!checkpoints.empty()) info.checkpoint = checkpoints.front().step;
  // Damaged connections: the run cannot continue.
  info.generation = store.connections().value_or(RunConnections()).generation;
  info.days = daysSinceChange(info.folder);
  info.isInUse = !tryLockRunFolder(info.folder);
  return info;
}

// The runs in the store, sorted from the oldest to the newest.
std::vector<StoredRunInfo> runsIn(const std::string& store, const std::string& identity) {
  std::vector<StoredRunInfo> runs;
  for (const fs::path& owner : storedFolders(store)) {
    const std::string name = owner.filename().string();
    if (!identity.empty() && name != identity) continue;
    for (const fs::path& run : storedFolders(owner.string())) runs.push_back(infoOf(name, run));
  }
  std::sort(runs.begin(), runs.end(), [](const auto& a, const auto& b) { return a.days > b.days; });
  return runs;
}

nlohmann::ordered_json toJson(const StoredRunInfo& info) {
  return {{"identity", info.identity},     {"run", info.run},   {"bytes", info.bytes},
          {"generation", info.generation}, {"days", info.days}, {"checkpoint", info.checkpoint},
          {"in_use", info.isInUse}};
}

int listCommand(const RunsOptions& options) {
  startLog("cleave-server", options.common.logLevel);
  const auto runs = runsIn(storeOf(options.common), options.identity);
  if (options.json) {
    auto list = nlohmann::ordered_json::array();
    for (const StoredRunInfo& info : runs) list.push_back(toJson(info));
    writeOutput(list.dump(2) + "\n");
    return 0;
  }
  if (runs.empty())
    writeOutput("no runs\n");
  else
    writeOutput(fmt::format("{:<44} {:<16} {:>10} {:>9} {:>11}\n", "run", "identity", "size",
                            "days", "checkpoint"));
  for (const StoredRunInfo& info : runs) {
    writeOutput(fmt::format("{:<44} {:<16} {:>10} {:>9.1f} {:>11}{}\n", printable(info.run),
                            printable(info.identity), bytesText(static_cast<double>(info.bytes)),
                            info.days,
                            info.checkpoint == 0 ? "none" : std::to_string(info.checkpoint),
                            info.isInUse ? "  in use" : ""));
  }
  return 0;
}

int removeCommand(const RunsOptions& options) {
  startLog("cleave-server", options.common.logLevel);
  if (options.run.empty() == options.older.empty()) {
    throw UsageError("wrong-use", "give either a run or --older",
                     "cleave-server runs remove RUN, or cleave-server runs remove --older 30d");
  }
  const double minDays = options.older.empty() ? 0 : parseAge("--older", options.older);
  auto removed = nlohmann::ordered_json::array();
  for (const StoredRunInfo& info : runsIn(storeOf(options.common), options.identity)) {
    const bool isMeant = options.run.empty() ? info.days >= minDays : info.run == options.run;
    if (!isMeant) continue;
    if (info.isInUse) {
      if (options.run.empty()) continue;
      throw RunError(
          "run-in-use", "the server is using the run " + info.run,
          "end its session first: cleave-server sessions list" + optionsText(options.common));
    }
    std::error_code error;
    fs::remove_all(info.folder, error);
    if (error) throwCannotWrite(info.folder, "cannot be removed", error.value());
    removed.push_back(toJson(info));
    if (!options.json) {
      writeOutput(fmt::format("removed {} ({}, {})\n", printable(info.run),
                              printable(info.identity),
                              bytesText(static_cast<double>(info.bytes))));
    }
  }
  if (removed.empty() && !options.run.empty()) {
    throw UsageError("no-run", "the store has no run '" + options.run + "'",
                     "list its runs: cleave-server runs list" + optionsText(options.common));
  }
  if (options.json) writeOutput(removed.dump(2) + "\n");
  if (removed.empty() && !options.json) writeOutput("no run is that old\n");
  return 0;
}

CLI::App* addCommand(CLI::App& runs, RunsOptions& options, const std::string& name,
                     const std::string& help, const std::string& example) {
  CLI::App* command = runs.add_subcommand(name, help);
  addCommonOptions(*command, options.common, false);
  command->add_option("--identity", options.identity, "Only runs of this identity");
  command->add_flag("--json", options.json, "Prints JSON, for programs");
  command->footer("Example:\n  cleave-server runs " + example +
                  " --config configs/server.yaml\n\nGive the configuration that the server was "
                  "started with, because it names the store. The server may be running.\n\n"
                  "Exit codes: 0 done, 1 failed, 2 usage error.");
  return command;
}

}  // namespace

void addRunsCommands(CLI::App& app, std::function<int()>& command) {
  static RunsOptions options;
  CLI::App* runs =
      app.add_subcommand("runs", "Lists and removes the runs in the store of this machine");
  runs->require_subcommand(1);
  runs->footer("'cleave-server runs COMMAND --help' shows a command's options and an example.");

  CLI::App* list = addCommand(*runs, options, "list",
                              "Lists the runs with their size and newest checkpoint", "list");
  list->callback([&] { command = [&] { return listCommand(options); }; });

  CLI::App* remove =
      addCommand(*runs, options, "remove",
                 "Removes runs, with their records and checkpoints; their clients cannot continue",
                 "remove --older 30d");
  remove->add_option("RUN", options.run, "The run's id, as 'runs list' shows it");
  remove
      ->add_option("--older", options.older,
                   "Removes all runs that have not changed for this time, such as 30d or 12h")
      ->type_name("TIME");
  remove->callback([&] { command = [&] { return removeCommand(options); }; });
}

}  // namespace cleave
