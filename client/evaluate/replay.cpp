#include "client/evaluate/replay.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "client/data/samples/loader.h"
#include "client/run/prepare.h"
#include "client/run/run_history.h"
#include "client/train/step_decider.h"
#include "client/train/train_run.h"
#include "common/cohort/roster_json.h"
#include "common/core/units.h"
#include "common/device/torch_errors.h"
#include "common/files/environment.h"
#include "common/model/stage/stage.h"
#include "common/run/device.h"

namespace cleave {
namespace {

[[noreturn]] void refuse(const std::string& sentence, const std::string& hint) {
  throw UsageError("bad-replay", sentence, hint).about("--replay");
}

std::string readFile(const std::string& path) {
  auto content = diskFiles().read(path);
  if (!content) {
    refuse("there is no " + path, "give the folder of a run that is done, and has kept its model");
  }
  return *std::move(content);
}

nlohmann::json summaryIn(const std::string& folder) {
  const std::string path = folder + "/summary.json";
  const auto summary = nlohmann::json::parse(readFile(path), nullptr, false);
  const bool isComplete = summary.is_object() && summary.contains("steps") &&
                          summary.at("steps").is_number_unsigned() && summary.contains("codec");
  if (!isComplete) refuse(path + " is damaged", "restore it from a backup");
  const auto changes = nlohmann::json::parse(
      diskFiles().read(folder + "/changes.json").value_or("[]"), nullptr, false);
  if (changes != nlohmann::json::array()) {
    refuse(fmt::format("the settings of the run in {} were changed when it was resumed", folder),
           "only runs with the same settings in all steps can be computed again");
  }
  for (const auto& [flow, codec] : summary.at("codec").items()) {
    if (codec == "none") continue;
    refuse(fmt::format("the run in {} compressed {} with a codec, which changes its results",
                       folder, flow),
           "only runs with codec: none can be computed again");
  }
  return summary;
}

PreparedRun prepare(const std::string& folder) {
  RunOptions options;
  options.common.config = folder + "/config.yaml";
  return resolveRun(options, Purpose::verification);
}

// Puts the data of all members, and the plan of their batches, into the first one's run.
void pool(PreparedRun& first, const std::vector<std::string>& folders, const Roster& roster) {
  const std::size_t members = first.settings.cohort.members.size();
  if (folders.size() != members) {
    refuse(fmt::format(
               "the run is one of a cohort of {}, but {} given", countText(members, "member"),
               folders.size() == 1 ? "1 folder is" : fmt::format("{} folders are", folders.size())),
           "give the folders of all members, in the order of cohort.members");
  }
  std::vector<std::shared_ptr<const Dataset>> parts;
  for (std::size_t m = 0; m < members; ++m) {
    if (roster.train.at(m) == 0) {  // it has never taken part
      parts.push_back(sliceDataset(first.data.train, 0, 0));
      continue;
    }
    const PreparedRun other = m == 0 ? PreparedRun() : prepare(folders[m]);
    const PreparedRun& own = m == 0 ? first : other;
    const std::string& name = first.settings.cohort.members[m];
    if (own.settings.member != name) {
      refuse(fmt::format("{} is the run of {}, not of {}", folders[m], own.settings.member, name),
             "give the folders in the order of cohort.members");
    }
    if (own.data.train->size() != roster.train[m]) {
      refuse(fmt::format("{} has {} training samples, but had {} in the run", name,
                         own.data.train->size(), roster.train[m]),
             "restore its data");
    }
    parts.push_back(own.data.train);
  }
  first.data.train = joinDatasets(std::move(parts));
  RunPlan* plan = &first.plan;
  joinMembers(first.plan.spec, roster, 0, std::span(&plan, 1));
  first.plan.member.reset();
}

Comparison compareWithModel(const WholeStage& whole, const std::string& path) {
  Comparison result;
  const std::string file = readFile(path);
  std::map<std::string, at::Tensor> saved;
  for (NamedTensor& tensor : fromSafetensors(std::as_bytes(std::span(file)), path)) {
    saved.emplace(tensor.name, std::move(tensor.tensor));
  }
  for (const NamedTensor& tensor : weightsOf(whole.evaluatedSet())) {
    const auto found = saved.find(tensor.name);
    if (found == saved.end()) refuse(path + " lacks " + tensor.name, "give the run's own model");
    result.add(found->second, tensor.tensor, tensor.name);
  }
  return result;
}

}  // namespace

Replayed replayRun(const std::vector<std::string>& folders) {
  const auto isDone = [](const std::string& each) { return isRunDone(diskFiles(), each); };
  const auto found = std::ranges::find_if(folders, isDone);
  const std::string& done = found == folders.end() ? folders.front() : *found;
  const nlohmann::json summary = summaryIn(done);
  PreparedRun run = prepare(folders.front());
  if (run.settings.cohort.exists()) {
    if (!summary.contains("cohort")) {
      refuse(done + "/summary.json does not say who took part",
             "give runs of this version of Cleave");
    }
    pool(run, folders, rosterFromJson(summary.at("cohort")));
  } else if (folders.size() != 1) {
    refuse("the run is not one of a cohort, but several folders are given", "give one folder");
  }
  run.device = &openDevice(run.settings.device);
  setComputeThreads(run.threads);
  return withTorchErrors([&] {
    WholeStage whole(run.plan.stage, *run.device);
    whole.importWeights(initialWeights(run));
    StepDecider decider(run.settings, run.trainSamples());
    const auto memory = std::make_shared<BufferPool>();
    std::unique_ptr<Loader> loader;
    Replayed result;
    result.folder = done;
    result.steps = summary.at("steps");
    std::uint64_t loaded = 0;    // epoch
    std::size_t turnsBegun = 0;  // of a relay
    for (std::uint64_t step = 1; step <= result.steps; ++step) {
      const std::uint64_t epoch = run.epochOf(step);
      if (epoch != std::exchange(loaded, epoch)) {
        loader = std::make_unique<Loader>(run.data.train, memory, trainingOptions(run, epoch));
      }
      if (run.settings.cohort.isRelay()) {
        const Roster& roster = run.plan.joint->roster();
        const bool isFirst = turnsBegun < roster.attendance.size() &&
                             roster.attendance[turnsBegun].firstStep == step;
        if (isFirst) decider.beginTurn(roster, turnsBegun++);
      }
      const auto batch = loader->next();
      whole.setLossScale(decider.lossScale());
      whole.runBatch(Phase::train, step, run.plan.division(Phase::train, step, batch->samples()),
                     viewOf(*batch));
      whole.update(decider.decide(step, whole.report(), {}, {}));
    }
    result.weights = compareWithModel(whole, done + "/model.safetensors");
    return result;
  });
}

}  // namespace cleave
