// cleave-client verify: runs some steps through a server, and the same steps with the whole model
// in this process. It compares losses, gradients and weights. Any difference in bits is an error,
// unless --tolerance allows it.

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>

#include "client/commands/commands.h"
#include "client/evaluate/replay.h"
#include "client/evaluate/verification.h"
#include "client/run/prepare.h"
#include "common/core/log.h"
#include "common/core/units.h"

namespace cleave {
namespace {

struct VerifyCommandOptions {
  RunOptions run;
  VerifyOptions verify;
  std::uint32_t members = 0;        // of a cohort; 0: none
  std::vector<std::string> replay;  // folders of a run to compute again; empty: none
};

// The samples of each of `members` members: unequal parts of a set, of which none is empty if there
// are enough samples.
std::vector<std::uint32_t> unequalParts(std::uint32_t samples, std::uint32_t members) {
  std::vector<std::uint32_t> parts(members);
  std::uint32_t weights = members * (members + 1) / 2, left = samples;
  for (std::uint32_t m = 0; m < members; ++m) {
    parts[m] = static_cast<std::uint32_t>(std::uint64_t{left} * (m + 1) / weights);
    left -= parts[m];
    weights -= m + 1;
  }
  return parts;
}

// The settings of member `m`, instead of those of the configured cohort. They keep cohort.mode.
void becomeMember(RunOptions& options, std::uint32_t m, std::uint32_t members) {
  std::string names;
  for (std::uint32_t each = 1; each <= members; ++each) {
    names += fmt::format("{}member-{}", names.empty() ? "" : ", ", each);
  }
  for (const std::string& setting :
       {std::string("id=verify"), fmt::format("members=[{}]", names),
        fmt::format("member=member-{}", m + 1), std::string("min_members=0"),
        std::string("begin_members=0")}) {
    options.common.overrides.push_back("cohort." + setting);
  }
}

// A member of a cohort, with part `m` of the data.
PreparedRun prepareMember(RunOptions options, std::uint32_t m, std::uint32_t members,
                          const Datasets& whole) {
  becomeMember(options, m, members);
  if (m > 0 && !options.runDir.empty()) options.runDir += fmt::format("/member-{}", m + 1);
  const auto part = [&](const std::shared_ptr<const Dataset>& data) {
    const std::vector<std::uint32_t> parts = unequalParts(data->size(), members);
    const auto first = std::accumulate(parts.begin(), parts.begin() + m, 0u);
    return std::shared_ptr<const Dataset>(sliceDataset(data, first, parts[m]));
  };
  return prepareRun(options, Purpose::verification, [&](const DataSettings&) {
    return Datasets{part(whole.train), part(whole.test)};
  });
}

// Turns are a run's history, which is checked when it is done.
UsageError noTurnsHere() {
  return UsageError("bad-cohort", "members that take turns do not train at the same time",
                    "when their run is done: cleave-client verify --replay RUN of each member")
      .about("cohort.mode");
}

// The run's client, or the members of a cohort.
std::vector<PreparedRun> prepareClients(const VerifyCommandOptions& options, Datasets& opened) {
  std::vector<PreparedRun> clients;
  const auto open = [&](const DataSettings& settings) { return opened = openDatasets(settings); };
  Config config = loadConfig(options.run.common);
  if (config.text("cohort.mode", "joint") == "relay") throw noTurnsHere();
  if (options.members == 0) {
    if (!config.text("cohort.id", "").empty()) {
      throw UsageError("bad-cohort", "a member of a cohort would wait for the others",
                       "to verify all on this machine: --members K, the number of members")
          .about("cohort");
    }
    clients.push_back(prepareRun(options.run, Purpose::verification, open));
    return clients;
  }
  // only opens the data
  RunOptions member = options.run;
  becomeMember(member, 0, options.members);
  resolveRun(member, Purpose::verification, open);
  RunOptions run = options.run;
  for (std::uint32_t m = 0; m < options.members; ++m) {
    clients.push_back(prepareMember(run, m, options.members, opened));
    // All members use the servers that the first one has started.
    run.server = addressesText(clients.front());
    if (run.runDir.empty()) run.runDir = clients.front().folder;
  }
  return clients;
}

// The data of all clients, as their model takes it.
Datasets pooledData(const std::vector<PreparedRun>& clients, const Datasets& opened) {
  const auto& model = clients.front().userModel;
  return model ? model->inputsFrom(opened) : opened;
}

// Whether values were compared. A part may have no values to compare: for example, a body without
// trainable parameters has no gradients.
bool hasItsValues(const std::string& name, const Comparison& result, const RunPlan& plan) {
  if (result.values > 0) return true;
  const int cut0 = plan.stage.cuts.cut0, cut1 = plan.stage.cuts.cut1;
  const std::map<std::string, std::pair<int, int>> parts = {
      {"head", {0, cut0}},
      {"body", {cut0, cut1}},
      {"tail", {cut1, static_cast<int>(plan.blocks.size())}}};
  const auto part = parts.find(name.substr(name.find('/') + 1));
  if (part == parts.end()) return false;
  const auto [first, last] = part->second;
  return (name.starts_with("gradients/") ? trainedCount(plan.blocks, first, last)
                                         : parameterCount(plan.blocks, first, last)) == 0;
}

void print(const Comparisons& results, const PreparedRun& run, std::uint32_t members) {
  for (const auto& [name, result] : results) {
    std::cout << fmt::format("{:<15} {:>10} values  ", name, result.values)
              << (result.equal
                      ? "bit-identical"
                      : fmt::format("relative difference {:.2g}, largest difference {:.3g} in {}",
                                    result.relativeDifference(), result.largestDifference,
                                    result.where))
              << "\n";
  }
  if (members > 0) std::cout << fmt::format("a cohort of {}, ", countText(members, "member"));
  std::cout << fmt::format(
      "{}, {}, {} micro-batches, schedule {}, {} per side; files in {}\n", run.settings.model.name,
      countText(run.bodies.size(), "server"), run.settings.microBatches, run.settings.schedule,
      countText(static_cast<std::uint64_t>(run.threads), "thread"), run.folder);
}

int replayCommand(const VerifyCommandOptions& options) {
  const auto [folder, steps, weights] = replayRun(options.replay);
  if (options.run.json) {
    std::cout << nlohmann::json{{"equal", weights.equal},
                                {"steps", steps},
                                {"values", weights.values},
                                {"largest_difference", weights.largestDifference},
                                {"where", weights.where}}
                     .dump(2)
              << std::endl;
  } else if (weights.equal) {
    std::cout << fmt::format(
                     "after {}, the whole model has the bits of {}/model.safetensors ({} values)",
                     countText(steps, "step"), folder, weights.values)
              << std::endl;
  } else {
    std::cout
        << fmt::format(
               "after {}, the whole model DIFFERS from {}/model.safetensors: by {:.3g} in {}",
               countText(steps, "step"), folder, weights.largestDifference, weights.where)
        << "\nOther processors, devices or numbers of threads than in the run give other bits."
        << std::endl;
  }
  return weights.equal ? 0 : 1;
}

int verifyCommand(const VerifyCommandOptions& options) {
  startLog("cleave-client",
           options.run.common.logLevel == "info" ? "warn" : options.run.common.logLevel);
  if (!options.replay.empty()) return replayCommand(options);
  if (options.run.common.config.empty()) {
    throw UsageError("wrong-use", "--config is required",
                     "'cleave-client verify --help' lists the options");
  }
  Datasets opened;
  std::vector<PreparedRun> clients = prepareClients(options, opened);
  const PreparedRun& run = clients.front();
  logWarnings(run, *processLog());
  const Comparisons results = verifyRun(clients, pooledData(clients, opened), options.verify);
  bool equal = true;
  bool passed = true;
  nlohmann::json json;
  for (const auto& [name, result] : results) {
    const bool hasValues = hasItsValues(name, result, run.plan);
    equal = equal && result.equal && hasValues;
    const bool agrees = options.verify.tolerance == 0
                            ? result.equal
                            : result.relativeDifference() <= options.verify.tolerance;
    passed = passed && agrees && hasValues;
    json["compared"][name] = {{"values", result.values},
                              {"equal", result.equal},
                              {"largest_difference", result.largestDifference},
                              {"relative_difference", result.relativeDifference()},
                              {"where", result.where}};
  }
  json["equal"] = equal;
  json["passed"] = passed;
  json["tolerance"] = options.verify.tolerance;
  json["folder"] = run.folder;
  if (options.run.json) {
    std::cout << json.dump(2) << std::endl;
  } else {
    print(results, run, options.members);
    std::cout << (equal ? "split and whole are bit-identical"
                  : passed
                      ? fmt::format("split and whole agree within {:g}", options.verify.tolerance)
                      : "split and whole DIFFER")
              << std::endl;
  }
  return passed ? 0 : 1;
}

}  // namespace

void addVerifyCommand(CLI::App& app, std::function<int()>& command) {
  static VerifyCommandOptions options;
  CLI::App* verify = app.add_subcommand(
      "verify", "Checks that the split model trains exactly like the whole model in one process");
  addRunOptions(*verify, options.run);
  verify->get_option("--config")->required(false);  // not with --replay
  verify->add_option("--steps", options.verify.steps, "Steps to compare")
      ->default_str("3")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1000000}));
  verify
      ->add_option(
          "--tolerance", options.verify.tolerance,
          "Maximum difference, |split - whole| / |whole|, per kind of result; 0 requires "
          "bit-identical results, which needs CPUs on both sides, or GPUs of the same model")
      ->default_str("0")
      ->check(CLI::Range(0.0, 1.0));
  verify
      ->add_option("--members", options.members,
                   "Divides the data among this many members of a cohort, in unequal parts, and "
                   "compares them with one client that has all of it")
      ->type_name("K")
      ->check(CLI::Range(1u, kMaxMembers));
  verify
      ->add_option(
          "--replay", options.replay,
          "Instead, recomputes a finished run with the whole model, and compares its saved "
          "model; of a cohort, give the folders of all members. Without --set and --steps")
      ->type_name("RUN...");
  verify->footer(
      "Example:\n  cleave-client verify --config configs/fashion_mnist.yaml "
      "--set train.micro_batches=7\n\nThe run fails if the split model and the "
      "whole model differ by more than --tolerance. "
      "Exit codes: 0 done, 1 failed run, 2 usage error or unsafe configuration.");
  verify->callback([&] { command = [&] { return verifyCommand(options); }; });
}

}  // namespace cleave
