// cleave-client checkpoints: the checkpoints of a run, from which it can continue.

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "client/commands/commands.h"
#include "client/run/run_history.h"
#include "common/core/log.h"
#include "common/core/units.h"

namespace cleave {
namespace {

struct CheckpointsOptions {
  std::string run;  // folder
  bool json = false;
};

int listCheckpoints(const CheckpointsOptions& options) {
  startLog("cleave-client", "error");
  readRunRecord(diskFiles(),
                options.run);  // throws UsageError if the folder is not the folder of a run
  const CheckpointStore store(diskFiles(), options.run);
  auto list = nlohmann::ordered_json::array();
  for (const RunCommit& commit : readCommits(diskFiles(), options.run)) {
    const auto found = store.find(commit.step, commit.client);
    list.push_back({{"step", commit.step},
                    {"intact", found.has_value()},
                    {"bytes", found ? found->totalBytes() : 0},
                    {"computed_with", found ? found->fingerprint : ""}});
  }
  if (options.json) {
    std::cout << list.dump(2) << std::endl;
    return 0;
  }
  for (const auto& each : list) {
    const bool isIntact = each.at("intact");
    std::cout << fmt::format("step {:<10} {}\n", each.at("step").get<std::uint64_t>(),
                             isIntact ? bytesText(each.at("bytes").get<double>()) + ", " +
                                            each.at("computed_with").get<std::string>()
                                      : "missing or damaged");
  }
  if (list.empty()) std::cout << "no checkpoints\n";
  std::cout << (isRunDone(diskFiles(), options.run)
                    ? "the run is done; its result is in summary.json"
                    : "to continue: cleave-client train --resume " + options.run)
            << std::endl;
  return 0;
}

}  // namespace

void addCheckpointsCommand(CLI::App& app, std::function<int()>& command) {
  static CheckpointsOptions options;
  CLI::App* checkpoints = app.add_subcommand(
      "checkpoints", "Lists the checkpoints of a run and checks their files for damage");
  checkpoints->add_option("RUN", options.run, "The run's folder")->required();
  checkpoints->add_flag("--json", options.json, "Prints JSON, for programs");
  checkpoints->footer(
      "Example:\n  cleave-client checkpoints runs/RUN\n\nExit codes: 0 done, even if a "
      "checkpoint is damaged; 1 the run's list of checkpoints is damaged; 2 usage error.");
  checkpoints->callback([&] { command = [&] { return listCheckpoints(options); }; });
}

}  // namespace cleave
