// cleave-server profile: measures the blocks that clients may place on this server.
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <utility>

#include "common/core/log.h"
#include "common/core/terminal.h"
#include "common/device/torch_errors.h"
#include "common/files/environment.h"
#include "common/run/device.h"
#include "common/run/profiler.h"
#include "server/commands/commands.h"
#include "server/config/settings.h"

namespace cleave {
namespace {

struct ServerProfileOptions {
  CommonOptions common;
  std::string client;  // file path of the client's profile
  std::string output = "server.json";
  std::uint32_t repeats = 3;
  bool json = false;
};

// All blocks that cuts allow in a body.
std::pair<int, int> blocksOfServers(const RunPlan& plan) {
  return {1, static_cast<int>(plan.blocks.size()) - 1};
}

int profileCommand(const ServerProfileOptions& options) {
  startLog("cleave-server", options.common.logLevel);
  Config config = loadConfig(options.common);
  const ServerSettings settings = readServerSettings(config);
  const Profile client = readProfile(options.client);
  ComputeDevice& device = openDevice(settings.device);
  const RunPlan plan = planOfProfile(client);
  const int threads = chooseThreads(usableCores(), static_cast<int>(plan.spec.serverThreads),
                                    settings.threads, /*sharesMachine=*/false)
                          .threads;
  setComputeThreads(threads);
  const auto [first, last] = blocksOfServers(plan);
  ProfilerOptions measured;
  measured.first = first;
  measured.last = last;
  measured.batch = client.batch;
  measured.repeats = static_cast<int>(options.repeats);
  for (const auto& [spec, codec] : client.codecs) measured.codecs.push_back(spec);
  Profile profile = withTorchErrors([&] { return measureProfile(plan, device, measured); });
  profile.threads = threads;
  profile.memoryBytes = static_cast<double>(settings.memoryBytes);
  if (device.memoryBytes() > 0) {
    profile.memoryBytes = std::min(profile.memoryBytes, static_cast<double>(device.memoryBytes()));
  }
  profile.runSpec = client.runSpec;
  writeProfile(options.output, profile);
  if (options.json) {
    std::cout << toJson(profile).dump(2) << std::endl;
    return 0;
  }
  std::cout << wrappedFor(STDOUT_FILENO, profileText(profile), 4)
            << fmt::format(
                   "\nnext, on the client's machine, with this file and the rate of the link:\n  "
                   "cleave-client plan --config CONFIG --profile {} --server-profile {} --rate "
                   "100Mbit/s --latency 10ms\n",
                   shellWord(options.client), shellWord(options.output))
            << std::flush;
  return 0;
}

}  // namespace

void addServerProfileCommand(CLI::App& app, std::function<int()>& command) {
  static ServerProfileOptions options;
  CLI::App* profile = app.add_subcommand("profile",
                                         "Measures a client's model on this machine, for "
                                         "'cleave-client plan'; needs none of its data");
  addCommonOptions(*profile, options.common, false);
  profile->add_option("--of", options.client, "The profile that cleave-client profile wrote")
      ->type_name("FILE")
      ->required();
  profile->add_option("--output", options.output, "The profile to write")
      ->type_name("FILE")
      ->default_str("server.json");
  profile->add_option("--repeat", options.repeats, "Repetitions of each measurement")
      ->default_str("3")
      ->check(CLI::Range(1u, 1000u));
  profile->add_flag("--json", options.json, "Prints the profile as JSON");
  profile->footer(
      "Example:\n  cleave-server profile --of client.json --output server.json "
      "--config configs/server.yaml\n\nGive the configuration that the server is started with, for "
      "its device, threads and memory limit. Other work on this machine, such as a running server, "
      "makes the times longer.\n\nExit codes: 0 done, 1 failed, 2 usage error.");
  profile->callback([&] { command = [&] { return profileCommand(options); }; });
}

}  // namespace cleave
