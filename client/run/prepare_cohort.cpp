// What a member of a cohort checks, and announces to the others.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <string_view>

#include "client/run/prepare_parts.h"

namespace cleave {
namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& hint, const std::string& key) {
  throw UsageError("bad-cohort", what + " is not supported in a cohort", hint).about(key);
}

// Keys that concern one member alone.
bool isOwnKey(const std::string& key) {
  constexpr std::string_view kKeys[] = {
      "run.name",       "known_as.", "data.",   "model.file",     "weights.",      "device",
      "threads.client", "tls.",      "servers", "connect.",       "cohort.member", "kept_samples.",
      "keep.",          "metrics.",  "probe.",  "cohort.key_file"};
  return std::ranges::any_of(kKeys, [&](std::string_view own) {
    return own.ends_with('.') ? key.starts_with(own) : key == own;
  });
}

// Members that take turns.
void checkRelayUse(const ClientSettings& settings) {
  const auto refuseHere = [](const std::string& sentence, const std::string& hint,
                             const std::string& key) {
    throw UsageError("bad-cohort", sentence, hint).about(key);
  };
  if (!settings.checkpoint.enabled()) {
    refuseHere("a member hands its checkpoint on at the end of its turn, but makes none",
               "set checkpoint.every_steps or checkpoint.every_seconds", "checkpoint");
  }
  if (settings.maxSteps > 0) {
    refuseHere(
        "train.max_steps cannot end a turn, which has whole epochs",
        "set train.max_steps to 0, and train.epochs to the passes over each member's samples",
        "train.max_steps");
  }
  if (!settings.stop.metric.empty()) {
    refuseHere("train.stop would end the run at one member only", "remove train.stop",
               "train.stop.metric");
  }
  if (settings.epochs % settings.turnEpochs != 0) {
    refuseHere(fmt::format("train.epochs, {}, is not a multiple of cohort.turn_epochs, {}",
                           settings.epochs, settings.turnEpochs),
               "change one of them", "cohort.turn_epochs");
  }
  // After its last turn, each member but one gets the model in another one without steps.
  const std::uint64_t turns = turnLengthOf(settings).rounds() * settings.cohort.size();
  if (turns >= kMaxTurns) {
    refuseHere(fmt::format("the members would have {} turns together, but {} are possible", turns,
                           kMaxTurns - 1),
               "raise cohort.turn_epochs", "cohort.turn_epochs");
  }
}

}  // namespace

void checkCohortUse(const PreparedRun& run) {
  const ClientSettings& settings = run.settings;
  if (!settings.autoCodecs.empty()) {
    refuse("codec: auto", "name a codec, such as --set codec=block:bits=8", "codec");
  }
  if (settings.hasEdges()) {
    refuse("a direct link between servers", "--set connect.direct=false", "connect.direct");
  }
  if (settings.cohort.isRelay()) checkRelayUse(settings);
  if (settings.cohort.atOnce() > 1 && !fitsBatchNorm(run.plan.blocks, 1)) {
    refuse("a batch norm with a single value per channel and sample",
           "use larger inputs, or a model with group norm: a member may have a single sample in a "
           "batch",
           "model");
  }
  if (!settings.cohort.needsAll() && !settings.checkpoint.enabled()) {
    throw UsageError("bad-cohort", "a cohort that may go on without a member needs checkpoints",
                     "set checkpoint.every_steps or checkpoint.every_seconds, or "
                     "cohort.min_members to 0")
        .about("cohort.min_members");
  }
  if (run.data.balanced) {
    refuse("data.sampling: balanced", "--set data.sampling=shuffled", "data.sampling");
  }
}

std::map<std::string, std::string> agreedValues(const Config& config, const PreparedRun& run) {
  std::map<std::string, std::string> values = valuesOf(config, run.settings);
  std::erase_if(values, [](const auto& each) { return isOwnKey(each.first); });
  std::string arrays;
  for (const SampleArray& array : run.data.train->arrays()) {
    arrays += (arrays.empty() ? "" : ", ") + toString(array);
  }
  values["data"] = fmt::format("{}, {} classes", arrays, run.data.train->classes());
  return values;
}

}  // namespace cleave
