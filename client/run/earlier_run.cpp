#include "client/run/earlier_run.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>

#include "client/config/learning_rate.h"
#include "client/run/saved_model.h"
#include "common/core/durable.h"
#include "common/core/log.h"
#include "common/core/units.h"
#include "common/files/sha256.h"
#include "common/run/run_folder.h"

namespace cleave {
namespace {

// In hex.
std::string configDigest(const std::string& folder) {
  return hexOf(sha256Of(diskFiles().read(folder + "/config.yaml").value_or("")));
}

// The last model, or the best one if the last one was not kept.
std::string savedModelOf(const std::string& folder) {
  std::error_code ignored;
  const std::string last = folder + "/model.safetensors", best = folder + "/model.best.safetensors";
  const bool onlyBest =
      !std::filesystem::exists(last, ignored) && std::filesystem::exists(best, ignored);
  return onlyBest ? best : last;
}

UsageError runDone(const std::string& folder, const std::string& hint) {
  return UsageError("run-done", "the run in " + folder + " is done; its result is in summary.json",
                    hint)
      .about("--resume");
}

// Throws UsageError "bad-replicas" if the run began with another number of replicas of a body.
// `servers`: those with which it began; empty for local servers.
void checkSameReplicas(const PreparedRun& run, const std::string& servers) {
  const std::vector<BodyServers> before = parseAddresses(servers);
  for (std::size_t b = 0; b < run.settings.bodies(); ++b) {
    const std::size_t began = servers.empty() ? 1 : before.at(b).size();
    const std::uint32_t replicas = replicasOf(run.settings, b);
    if (replicas == began) continue;
    throw UsageError(
        "bad-replicas",
        fmt::format("the run in {} began with {} of its body {}, and cannot continue with {}",
                    run.folder, countText(began, "replica"), b + 1, replicas),
        began == 1 ? fmt::format("give one address of body {} with --server", b + 1)
                   : fmt::format("give {} addresses of body {}, joined by +, with --server", began,
                                 b + 1));
  }
}

// The key that limits the run's number of steps.
std::string lengthKey(const PreparedRun& run) {
  const ClientSettings& settings = run.settings;
  const bool isLimited =
      settings.maxSteps > 0 &&
      settings.maxSteps < settings.epochs * stepsPerEpoch(settings, run.trainSamples());
  return isLimited ? "train.max_steps" : "train.epochs";
}

// The number of steps of a run that is done; 0 if its summary is damaged.
std::uint64_t stepsOfSummary(const std::string& folder) {
  const auto json = nlohmann::json::parse(diskFiles().read(folder + "/summary.json").value_or(""),
                                          nullptr, false);
  const bool isKnown =
      json.is_object() && json.contains("steps") && json.at("steps").is_number_unsigned();
  return isKnown ? json.at("steps").get<std::uint64_t>() : 0;
}

bool isLengthKey(const std::string& key) {
  return key == "train.epochs" || key == "train.max_steps";
}

// Whether one of the changes gives a run that is done more steps. `isMore`: it would have more
// steps without train.stop.
bool areLonger(const std::vector<SettingChange>& changes, bool isMore) {
  const auto rise = [](const SettingChange& change) {
    return std::strtod(change.after.c_str(), nullptr) - std::strtod(change.before.c_str(), nullptr);
  };
  return std::any_of(changes.begin(), changes.end(), [&](const SettingChange& change) {
    if (isLengthKey(change.key)) return isMore;
    if (change.key == "train.stop.patience") return rise(change) > 0;
    return change.key == "train.stop.min_change" && rise(change) < 0;
  });
}

// How many steps a cohort's run has is known when all members are connected.
void checkLengthOfCohort(const PreparedRun& run) {
  if (!isRunDone(diskFiles(), run.folder)) return;
  // In a relay, the server has the state from the end of the last turn.
  const bool isRelay = run.settings.cohort.isRelay();
  if (run.commits.empty() && !isRelay) {
    throw runDone(run.folder, withoutCheckpointHint(run.folder));
  }
  const bool isLonger = std::ranges::any_of(run.changes, [](const SettingChange& change) {
    const auto length = [](const std::string& text) {
      const double value = std::strtod(text.c_str(), nullptr);
      return value == 0 ? HUGE_VAL : value;  // train.max_steps: 0 is no limit
    };
    return isLengthKey(change.key) && length(change.after) > length(change.before);
  });
  if (isLonger || areLonger(run.changes, false)) return;
  throw runDone(run.folder,
                fmt::format("to train it further: cleave-client train --resume {} --set "
                            "train.epochs=N, with N greater than {}, at all members",
                            run.folder, run.settings.epochs));
}

// Throws UsageError unless the run gets at least as many steps as it has done, and more if it is
// done.
void checkLength(const PreparedRun& run) {
  if (run.settings.cohort.exists()) return checkLengthOfCohort(run);
  const std::uint64_t total = totalSteps(run.settings, run.trainSamples());
  const std::string key = lengthKey(run);
  const auto valueFor = [&](std::uint64_t steps) {
    const std::uint64_t perEpoch = stepsPerEpoch(run.settings, run.trainSamples());
    return key == "train.epochs" ? (steps + perEpoch - 1) / perEpoch : steps;
  };
  if (isRunDone(diskFiles(), run.folder)) {
    if (run.commits.empty()) throw runDone(run.folder, withoutCheckpointHint(run.folder));
    const std::uint64_t done = stepsOfSummary(run.folder);
    const std::uint64_t planned = std::max(done, readRunRecord(diskFiles(), run.folder).steps);
    if (total > done && areLonger(run.changes, total > planned)) return;
    const bool hasStopped = done < planned && !run.settings.stop.metric.empty();
    throw runDone(run.folder,
                  fmt::format("to train it further: cleave-client train --resume {} --set {}=N, "
                              "with N greater than {}",
                              run.folder, hasStopped ? "train.stop.patience" : key,
                              hasStopped ? run.settings.stop.patience : valueFor(planned)));
  }
  const std::uint64_t done = run.commits.empty() ? 0 : run.commits.front().step;
  if (total >= done) return;
  throw UsageError("bad-config",
                   fmt::format("{} gives the run {}, but it has already done {}", key,
                               countText(total, "step"), done),
                   fmt::format("set {} to at least {}", key, valueFor(done)))
      .about(key);
}

// Says what becomes of a learning rate that depends on the length of the run.
void announceLearningRate(const PreparedRun& run, std::uint64_t step) {
  const LearningRateOptions options = learningRateOptions(run.settings, run.trainSamples());
  const bool isLonger =
      std::any_of(run.changes.begin(), run.changes.end(),
                  [](const SettingChange& change) { return isLengthKey(change.key); });
  if (!isLonger || !findLearningRate(options.schedule).decays || step == 0 ||
      step >= options.totalSteps) {
    return;
  }
  processLog()->info(
      "learning rate: the schedule {} now spans {} steps; step {} has the rate {:.6g}",
      options.schedule, options.totalSteps, step + 1, learningRate(options, step + 1));
}

// The values of the configuration in the run's folder.
std::map<std::string, std::string> storedValues(const std::string& folder) {
  const std::string path = folder + "/config.yaml";
  Config config = parseStoredConfig(diskFiles().read(path).value_or(""), path);
  const ClientSettings settings = readClientSettings(config);
  return valuesOf(config, settings);
}

}  // namespace

std::string withoutCheckpointHint(const std::string& folder) {
  return "the checkpoint of its end is gone: to train its model further, start a separate run with "
         "--set weights.file=" +
         savedModelOf(folder);
}

RunOptions ofEarlierRun(RunOptions options) {
  const RunRecordFile record = readRunRecord(diskFiles(), options.resume);
  if (isRunDone(diskFiles(), options.resume)) {
    if (options.common.overrides.empty()) {
      throw runDone(options.resume, "to train it further: cleave-client train --resume " +
                                        options.resume + " --set train.epochs=N");
    }
    if (options.fromStart) {
      throw runDone(options.resume, "start a separate run instead of adding --from-start");
    }
  }
  if (!record.config.empty() && record.config != configDigest(options.resume)) {
    throw UsageError("other-run-spec",
                     options.resume + "/config.yaml has changed since the run began",
                     "restore the file; to change settings that may change, add --set")
        .about("--resume");
  }
  for (const std::string& override : options.common.overrides) {
    if (!override.starts_with("servers=")) continue;
    throw UsageError("wrong-use", "--set servers has no effect with --resume",
                     "give the addresses with --server");
  }
  if (options.server.empty()) options.server = record.server;
  options.common.config = options.resume + "/config.yaml";
  return options;
}

std::vector<SettingChange> changesOfEarlierRun(const RunOptions& options, const Config& config,
                                               const ClientSettings& settings) {
  return changesBetween(storedValues(options.resume), valuesOf(config, settings), options.resume,
                        options.common.overrides);
}

Datasets openAgain(const DataSettings& settings, const DataOpener& open) {
  try {
    return open(settings);
  } catch (const UsageError& error) {
    if (error.key().empty() || error.key() == kSkipKey) throw;
    throw UsageError(error, error.what(),
                     "a resumed run cannot read other data: restore the data of the start of the "
                     "run, or put a link to it in its place");
  }
}

void checkSameData(const PreparedRun& run, const std::string& folder) {
  const std::string model = savedModelOf(folder);
  const auto refuse = [&](const std::string& what) {
    std::error_code ignored;
    const bool hasModel = std::filesystem::exists(model, ignored);
    throw UsageError("other-data", what + " at the start of the run in " + folder,
                     "restore the data, or start a separate run" +
                         (hasModel ? " with --set weights.file=" + model : std::string()))
        .about("--resume");
  };
  const RunRecordFile record = readRunRecord(diskFiles(), folder);
  const auto compare = [&](const std::string& set, const DataDigest& before,
                           const DataDigest& now) {
    const std::string change = changeSince(before, now);
    if (change.empty()) return;
    refuse("the " + set + " set " + change);
  };
  compare("training", record.train, run.trainDigest);
  compare("evaluation", record.evaluation, run.evaluationDigest);
  nlohmann::json learned;
  try {
    learned = openSavedModel(model, false).description.learned;
  } catch (const UsageError&) {
    return;
  }
  if (isSameLearned(learned, run.data.train->learned())) return;
  refuse("the training set has other classes or column statistics than");
}

void removeCheckpoints(const std::string& folder) {
  diskFiles().makeFolder(folder + "/checkpoints");
  writeCommits(diskFiles(), folder, {});
  CheckpointStore(diskFiles(), folder).removeAll();
}

void openEarlierRun(PreparedRun& run, const RunOptions& options) {
  const RunRecordFile record = readRunRecord(diskFiles(), options.resume);
  run.hello.set_run_id(record.run);
  run.folder = options.resume;
  run.isResumed = true;
  checkSameReplicas(run, record.server);
  run.lock = lockRunFolder(run.folder);
  if (options.takeOver) {
    repairConnections(diskFiles(), run.folder);
    run.hello.set_take_over(true);
  }
  CheckpointStore store(diskFiles(), run.folder);
  store.removeIncomplete();
  if (options.fromStart) return removeCheckpoints(run.folder);  // a cohort would use them
  run.commits = intactCommits(diskFiles(), run.folder);
  for (const RunCommit& commit : run.commits) {
    if (commit.servers.size() == run.bodies.size()) continue;
    throw RunError(
        "bad-checkpoint",
        fmt::format("the checkpoint of step {} in {} is of {} servers, but the run has {}",
                    commit.step, run.folder, commit.servers.size(), run.bodies.size()),
        "restore the run's folder from a backup, or add --from-start")
        .about("--resume");
  }
  checkLength(run);
}

void continueRun(PreparedRun& run, std::uint64_t step) {
  reopenRun(diskFiles(), run.folder);
  if (run.isResumed) {
    recordChanges(diskFiles(), run.folder, run.changes, step, storedValues(run.folder));
  }
  if (run.changes.empty()) return;
  announceLearningRate(run, step);
  rewriteConfig(run);
  run.changes.clear();
}

void writeRecord(const PreparedRun& run, const std::string& servers) {
  const std::uint64_t steps = run.totalSteps();
  // While `codec: auto` is undecided, config.yaml will be written again.
  writeRunRecord(diskFiles(), run.folder,
                 {run.hello.run_id(), servers, steps, steps == 0 ? 0 : run.epochOf(steps),
                  run.settings.autoCodecs.empty() ? configDigest(run.folder) : "", run.trainDigest,
                  run.evaluationDigest});
}

void recordLength(const PreparedRun& run) {
  RunRecordFile record = readRunRecord(diskFiles(), run.folder);
  record.steps = run.totalSteps();
  record.epochs = record.steps == 0 ? 0 : run.epochOf(record.steps);
  writeRunRecord(diskFiles(), run.folder, record);
}

// A process that is killed between the two writes leaves a record without a digest, so that the run
// can continue with either configuration.
void rewriteConfig(const PreparedRun& run) {
  RunRecordFile record = readRunRecord(diskFiles(), run.folder);
  if (!record.config.empty()) {
    record.config.clear();
    writeRunRecord(diskFiles(), run.folder, record);
  }
  writeFileDurably(run.folder + "/config.yaml", run.settings.resolved);
  writeRecord(run, record.server);
}

}  // namespace cleave
