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
  constexpr std::string_view kKeys[] = {"run.name", "known_as.", "data.",          "model.file",
                                        "weights.", "device",    "threads.client", "tls.",
                                        "servers",  "connect.",  "cohort.member",  "kept_samples.",
                                        "keep.",    "metrics.",  "probe."};
  return std::ranges::any_of(kKeys, [&](std::string_view own) {
    return own.ends_with('.') ? key.starts_with(own) : key == own;
  });
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
  if (!fitsBatchNorm(run.plan.blocks, 1)) {
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
