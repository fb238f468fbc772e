// cleave-client profile: measures the blocks of a configuration's model and its codecs on this
// machine, for `plan` and `simulate`.

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <set>
#include <utility>

#include "client/codecs/codec_choice.h"
#include "client/commands/commands.h"
#include "client/run/prepare.h"
#include "client/train/train_run.h"
#include "common/core/durable.h"
#include "common/core/log.h"
#include "common/core/terminal.h"
#include "common/device/torch_errors.h"
#include "common/files/sha256.h"
#include "common/run/device.h"
#include "common/run/profiler.h"
#include "compression/registry.h"

namespace cleave {
namespace {

struct ProfileOptions {
  RunOptions run;  // only its configuration and `json`
  std::string output = "client.json";
  std::vector<std::string> codecs;
  std::uint32_t repeats = 3;
};

// The configured codecs, those that `auto` chooses from, and those that the user asks for.
std::vector<std::string> codecsToMeasure(const ClientSettings& settings,
                                         const std::vector<std::string>& asked) {
  std::set<std::string> specs;
  for (const auto& [flow, codec] : settings.codecs) specs.insert(codec->spec());
  const auto ofAuto = autoCodec(parseCodecSpec("auto:min_bits=2"));
  for (const ParsedCodec& codec : ofAuto->choices) specs.insert(codec->spec());
  for (const std::string& spec : asked) specs.insert(makeCodec(spec)->spec());
  return {specs.begin(), specs.end()};
}

// The run spec from which a server makes its own profile. Servers measure all blocks that they may
// get, so several bodies count as one. Of an exported model, the run spec has one graph and
// Profile::graphs has all.
RunSpec specForServers(const PreparedRun& run) {
  ClientSettings settings = run.settings;
  if (run.userModel) settings.cuts = {1, 2};
  if (run.bodies.size() > 1) {
    if (!run.userModel) settings.cuts = {settings.cuts.front(), settings.cuts.back()};
    settings.codecs.clear();  // those of the inner cuts do not fit
  }
  return makeRunSpec(settings, run.data, run.userModel.get());
}

std::vector<std::string> graphsForServers(const PreparedRun& run) {
  std::vector<std::string> graphs;
  if (!run.userModel) return graphs;
  for (const std::string& packed : run.userModel->packedBodies()) graphs.push_back(hexOf(packed));
  return graphs;
}

// Divides an exported model at the cuts among which a plan may choose.
PreparedRun dividedForPlan(PreparedRun run) {
  if (!run.userModel) return run;
  std::vector<std::string> cuts = run.userModel->possibleCuts(run.settings);
  return dividedAt(std::move(run), std::move(cuts));
}

int profileCommand(const ProfileOptions& options) {
  startLog("cleave-client", options.run.common.logLevel);
  checkCanWrite(options.output);
  PreparedRun resolved = resolveRun(options.run, Purpose::measurement);
  requireProfilable(resolved);
  const PreparedRun run = dividedForPlan(std::move(resolved));
  ComputeDevice& device = openDevice(run.settings.device);
  const ThreadCount threads =
      chooseThreads(usableCores(), run.settings.clientThreads, 0, /*sharesMachine=*/false);
  setComputeThreads(threads.threads);
  const Batch batch = firstBatch(run);
  const BatchView data = viewOf(batch);
  ProfilerOptions measured;
  measured.last = static_cast<int>(run.plan.blocks.size());
  measured.batch = batch.samples();
  measured.data = &data;
  measured.codecs = codecsToMeasure(run.settings, options.codecs);
  measured.repeats = static_cast<int>(options.repeats);
  Profile profile = withTorchErrors([&] { return measureProfile(run.plan, device, measured); });
  profile.threads = threads.threads;
  const std::size_t ofDevice = device.memoryBytes();
  profile.memoryBytes = static_cast<double>(ofDevice > 0 ? ofDevice : machineMemory());
  profile.runSpec = toJson(specForServers(run));
  profile.graphs = graphsForServers(run);
  writeProfile(options.output, profile);
  if (options.run.json) {
    std::cout << toJson(profile).dump(2) << std::endl;
    return 0;
  }
  std::cout << wrappedFor(STDOUT_FILENO, profileText(profile), 4)
            << fmt::format(
                   "\nnext, on the server's machine, with this file:\n  cleave-server profile --of "
                   "{} --output server.json --config configs/server.yaml\n",
                   shellWord(options.output))
            << std::flush;
  return 0;
}

}  // namespace

void addProfileCommand(CLI::App& app, std::function<int()>& command) {
  static ProfileOptions options;
  CLI::App* profile = app.add_subcommand(
      "profile", "Measures the model's blocks and codecs on this machine, for plan and simulate");
  addCommonOptions(*profile, options.run.common, true);
  profile->add_option("--output", options.output, "The profile to write")
      ->type_name("FILE")
      ->default_str("client.json");
  profile
      ->add_option("--codec", options.codecs,
                   "Also measures this codec, besides the configured ones and those of auto; "
                   "repeatable")
      ->type_name("SPEC")
      ->allow_extra_args(false);
  profile->add_option("--repeat", options.repeats, "Repetitions of each measurement")
      ->default_str("3")
      ->check(CLI::Range(1u, 1000u));
  profile->add_flag("--json", options.run.json, "Prints the profile as JSON");
  profile->footer(
      "Example:\n  cleave-client profile --config configs/fashion_mnist.yaml --output client.json\n"
      "\nThen copy the file to the server, run 'cleave-server profile --of client.json' there, and "
      "pass both profiles to 'cleave-client plan'. Uses all cores unless threads.client is set.");
  profile->callback([&] { command = [&] { return profileCommand(options); }; });
}

}  // namespace cleave
