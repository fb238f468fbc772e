// cleave-client plan: finds the settings with the shortest predicted step on a given link, from
// profiles of client and server. With --workers, it divides the whole model among workers instead.

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "client/commands/commands.h"
#include "client/planning/auto_codec.h"
#include "client/planning/exposure.h"
#include "client/planning/planner.h"
#include "client/planning/worker_plan.h"
#include "common/core/log.h"
#include "common/core/terminal.h"
#include "compression/registry.h"

namespace cleave {
namespace {

struct PlanOptions {
  RunOptions run;                           // only its configuration and `json`
  std::string profile;                      // file path
  std::vector<std::string> serverProfiles;  // file paths
  LinkOptions link;
  std::vector<std::string> codecs;
  bool keepCuts = false;
  std::optional<std::uint32_t> staleness;  // the maximum; default: the configured one
  std::optional<std::uint32_t> replicas;   // the maximum; default: the configured number
  std::string clientMemory, serverMemory;  // with units; empty: from the profiles
};

using Json = nlohmann::ordered_json;

constexpr std::uint32_t kMaxPlannedBatch = 1 << 20;

// How the best plan is chosen.
constexpr const char* kChoice =
    "the best has the lowest staleness, then the least lossy codecs, then the fewest replicas, "
    "then the fewest bytes, then the least memory.";

double samplesPerSecond(const PreparedRun& run, const PlannedRun& plan) {
  return run.settings.batch / plan.seconds;
}

// Positions, or names of an exported model's modules.
Json cutsOf(const PreparedRun& run, const PlannedRun& plan) {
  if (!run.userModel) return plan.cuts;
  Json names = Json::array();
  for (const int cut : plan.cuts) {
    names.push_back(run.plan.blocks[static_cast<std::size_t>(cut) - 1].name);
  }
  return names;
}

// "[2, 5, 9]" or "[layer1, layer4]"
std::string cutsText(const PreparedRun& run, const PlannedRun& plan) {
  if (!run.userModel) return fmt::format("[{}]", fmt::join(plan.cuts, ", "));
  return fmt::format("[{}]", fmt::join(cutsOf(run, plan).get<std::vector<std::string>>(), ", "));
}

// The keys to change in the configuration.
std::string yamlOf(const PreparedRun& run, const PlannedRun& plan, bool withCuts) {
  std::string text;
  if (withCuts) {
    text += fmt::format("model:\n  cuts: {}\n", cutsText(run, plan));
  }
  const std::vector<std::string> bodies = serverPlaceholders(plan.replicas);
  // One server, which is also configured, needs no change.
  if (bodies.size() > 1 || plan.replicas.front() > 1 || run.bodies.size() > 1) {
    text += fmt::format("# servers: [{}]\n", fmt::join(bodies, ", "));
  }
  return text + fmt::format(
                    "train:\n  micro_batches: {}\n  in_flight: {}\n  schedule: {}\n"
                    "  staleness: {}\ncodec: {}\n",
                    plan.spec.microBatches, plan.spec.inFlight, plan.spec.schedule,
                    plan.spec.staleness, codecMapText(plan.codecs));
}

// The number that all bodies have, or else those of each body.
Json replicasOf(const PlannedRun& plan) {
  const std::uint32_t first = plan.replicas.front();
  const bool isSame = std::all_of(plan.replicas.begin(), plan.replicas.end(),
                                  [&](std::uint32_t count) { return count == first; });
  return isSame ? Json(first) : Json(plan.replicas);
}

// "2", or "2-1" if the bodies differ
std::string replicasText(const PlannedRun& plan) {
  const Json replicas = replicasOf(plan);
  return replicas.is_array() ? fmt::format("{}", fmt::join(plan.replicas, "-")) : replicas.dump();
}

Json toJson(const PreparedRun& run, const PlannedRun& plan) {
  Json json = {{"cuts", cutsOf(run, plan)},
               {"replicas", replicasOf(plan)},
               {"micro_batches", plan.spec.microBatches},
               {"in_flight", plan.spec.inFlight},
               {"schedule", plan.spec.schedule},
               {"staleness", plan.spec.staleness},
               {"codecs", plan.codecs},
               {"seconds", plan.seconds},
               {"samples_per_second", samplesPerSecond(run, plan)},
               {"bytes_up", plan.bytesUp},
               {"bytes_down", plan.bytesDown},
               {"client_memory_bytes", plan.clientMemory},
               {"server_memory_bytes", plan.maxServerMemory()},
               {"bound_seconds", plan.bound.seconds},
               {"bottleneck", bottleneckName(plan.bound.bottleneck)}};
  if (plan.bottleneckServer) json["bottleneck_server"] = *plan.bottleneckServer + 1;
  return json;
}

// `width`: of the column of cuts.
std::string rowOf(const PreparedRun& run, const PlannedRun& plan, const std::string& name,
                  std::size_t width) {
  return fmt::format(
             "  {:<11}{:<{}}{:>6}{:>4}{:>4}{:>3}  {:<9}{:>9.1f}{:>11.0f}{:>9}{:>9}{:>9}{:>9}  {}\n",
             name, cutsText(run, plan), width, replicasText(plan), plan.spec.microBatches,
             plan.spec.inFlight, plan.spec.staleness, plan.spec.schedule, 1e3 * plan.seconds,
             samplesPerSecond(run, plan), bytesText(plan.bytesUp), bytesText(plan.bytesDown),
             bytesText(plan.clientMemory), bytesText(plan.maxServerMemory()),
             bottleneckText(plan.bound.bottleneck, plan.bottleneckServer)) +
         fmt::format("  {:<11}codec: {}\n", "", codecsText(plan.codecs));
}

std::string choiceText(const Plans& plans) {
  std::string text =
      fmt::format("The plans' steps are within {:.0f} % of the shortest one. Of these plans, {}",
                  100 * kPlanTolerance, kChoice);
  if (plans.configured.seconds <= plans.shortest * (1 + kPlanTolerance)) {
    text += " The configuration's step is also within this limit.";
  }
  return text + "\n";
}

// `config`: the configuration's path.
void print(const PreparedRun& run, const Plans& plans, const LinkCosts& link, bool withCuts,
           const std::string& config) {
  std::size_t width = std::max<std::size_t>(9, cutsText(run, plans.configured).size() + 1);
  for (const PlannedRun& plan : plans.best) width = std::max(width, cutsText(run, plan).size() + 1);
  std::cout << fmt::format("link: {}; {} combinations considered\n\n", link.text(),
                           plans.considered)
            << fmt::format(
                   "  {:<11}{:<{}}{:>6}{:>4}{:>4}{:>3}  {:<9}{:>9}{:>11}{:>9}{:>9}{:>9}{:>9}  {}\n",
                   "", "cuts", width, "R", "M", "W", "D", "schedule", "step, ms", "samples/s", "up",
                   "down", "client", "server", "bottleneck");
  for (std::size_t p = 0; p < plans.best.size(); ++p) {
    std::cout << rowOf(run, plans.best[p], p == 0 ? "best" : "", width);
  }
  std::cout << rowOf(run, plans.configured, "configured", width) << "\n"
            << wrappedFor(
                   STDOUT_FILENO,
                   "R: replicas, M: micro-batches, W: micro-batches in flight, D: staleness, which "
                   "may cost accuracy; up, down: bytes per step over the client's links; client, "
                   "server: memory (of the server with the most)\n",
                   2)
            << "\n"
            << wrappedFor(STDOUT_FILENO, choiceText(plans), 2)
            << "\nTo use the best plan, change these keys in " << config << ":\n\n"
            << yamlOf(run, plans.best.front(), withCuts) << "\n"
            << wrappedFor(STDOUT_FILENO, exposureText(run) + "\n", 2) << std::flush;
}

PlannerOptions plannerOptions(const PlanOptions& options, const PreparedRun& run,
                              const LinkCosts& link, const Profile& client,
                              const std::vector<Profile>& servers) {
  PlannerOptions planner;
  planner.staleness = options.staleness.value_or(run.settings.staleness);
  planner.replicas = options.replicas.value_or(maxReplicasOf(run.settings));
  link.checkServers(servers.size());
  planner.setLinks = [link](StepCosts& costs) { link.applyTo(costs); };
  for (const std::string& spec : options.codecs) {
    const std::shared_ptr<const Codec> codec = makeCodec(spec);
    planner.codecs.push_back({codec->spec(), codec});
  }
  planner.keepsCuts = options.keepCuts;
  const auto limit = [](const char* flag, const std::string& text, double otherwise) {
    return text.empty() ? otherwise : static_cast<double>(parseSize({flag, text}));
  };
  planner.clientMemory = limit("--client-memory", options.clientMemory, client.memoryBytes);
  for (const Profile& server : servers) {
    planner.serverMemory.push_back(
        limit("--server-memory", options.serverMemory, server.memoryBytes));
  }
  return planner;
}

int planCommand(const PlanOptions& options) {
  startLog("cleave-client", options.run.common.logLevel);
  const LinkCosts link = linkCosts(options.link);
  const Profile client = readProfile(options.profile);
  const PreparedRun run = profiledRun(options.run, client);
  const std::vector<Profile> servers =
      readServerProfiles(options.serverProfiles, run.settings.bodies(), /*allowsMore=*/true);
  const PlannerOptions planner = plannerOptions(options, run, link, client, servers);
  const Plans plans = makePlans(run, client, servers, planner);
  const bool withCuts = !options.keepCuts && run.settings.inserts.empty();
  if (!options.run.json) {
    print(run, plans, link, withCuts, options.run.common.config);
    return 0;
  }
  Json json = link.json();
  json["considered"] = plans.considered;
  json["plans"] = Json::array();
  for (const PlannedRun& plan : plans.best) json["plans"].push_back(toJson(run, plan));
  json["configured"] = toJson(run, plans.configured);
  json["servers_learn"] = exposureText(run);
  json["yaml"] = yamlOf(run, plans.best.front(), withCuts);
  std::cout << json.dump(2) << std::endl;
  return 0;
}

// The options of `plan --workers`. Most others are of runs, and are refused with it.
CLI::Option* addWorkerOptions(CLI::App& plan, WorkerPlanOptions& options) {
  CLI::Option* workers =
      plan.add_option("--workers", options.workers,
                      "Divides the whole model among these workers, as PipeDream's planner does: "
                      "4x4 are 4 machines with 4 workers each")
          ->type_name("MxN");
  for (const CLI::Option* other : plan.get_options()) {
    const std::string name = other->get_name();
    if (name != "--workers" && name != "--profile" && name != "--rate" && name != "--replicas" &&
        name != "--json" && name != "--help" && name != "--log-level") {
      workers->excludes(plan.get_option(name));
    }
  }
  plan.add_option("--inside-rate", options.insideRate,
                  "With --workers 1xN: rate of a worker's link inside the machine; with several "
                  "machines, all transfers use --rate; default: --rate")
      ->type_name("RATE")
      ->needs(workers);
  plan.add_option("--batch", options.batch,
                  "With --workers: samples per batch of a worker; default: the profile's")
      ->type_name("N")
      ->check(CLI::Range(1u, kMaxPlannedBatch))
      ->needs(workers);
  plan.add_option("--epoch-samples", options.epochSamples,
                  "With --workers: samples per epoch, to predict its duration")
      ->type_name("N")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 50))
      ->needs(workers);
  return workers;
}

// Options that plans of runs require.
void requireRunOptions(const CLI::App& plan) {
  for (const char* name : {"--config", "--server-profile", "--latency"}) {
    if (plan.get_option(name)->count() == 0) throw CLI::RequiredError(name);
  }
}

}  // namespace

void addPlanCommand(CLI::App& app, std::function<int()>& command) {
  static PlanOptions options;
  static WorkerPlanOptions ofWorkers;
  CLI::App* plan = app.add_subcommand("plan",
                                      "Finds the cuts, servers, replicas, micro-batches, schedule "
                                      "and codecs with the shortest predicted step");
  addCommonOptions(*plan, options.run.common, false);
  plan->add_option("--profile", options.profile, "The client's times, from 'cleave-client profile'")
      ->type_name("FILE")
      ->required();
  plan->add_option("--server-profile", options.serverProfiles,
                   "The server's times, from 'cleave-server profile'; repeat it once per server "
                   "that the plan may use")
      ->type_name("FILE")
      ->allow_extra_args(false);
  addLinkOptions(*plan, options.link);
  plan->get_option("--latency")->required(false);
  plan->add_option(
          "--codec", options.codecs,
          "A codec that the plan may use; repeatable, starting with the least lossy one; "
          "default: each flow's configured codec, or, with auto, those that it chooses from")
      ->type_name("SPEC")
      ->allow_extra_args(false);
  plan->add_option("--staleness", options.staleness,
                   "The highest train.staleness that the plan may use; default: the configured one")
      ->type_name("D")
      ->check(CLI::Range(0u, kMaxStaleness));
  plan->add_option(
          "--replicas", options.replicas,
          "Maximum number of replicas of the body, in plans with one body; all have the "
          "first --server-profile; default: the configured number; with --workers, of each "
          "stage; default: any number")
      ->type_name("R")
      ->check(CLI::Range(1u, kMaxBodyReplicas));
  plan->add_flag("--keep-cuts", options.keepCuts, "Keeps the configured cuts");
  plan->add_option("--client-memory", options.clientMemory,
                   "Memory for the run on the client, such as 4GiB; default: all that the profile "
                   "reports")
      ->type_name("SIZE");
  plan->add_option("--server-memory", options.serverMemory,
                   "Memory for the run on the server; default: the server's limits.memory_mib")
      ->type_name("SIZE");
  plan->add_flag("--json", options.run.json, "Prints the plans as JSON, and nothing else");
  const CLI::Option* workers = addWorkerOptions(*plan, ofWorkers);
  plan->footer(fmt::format(
      "Example:\n  cleave-client profile --config configs/fashion_mnist.yaml --output client.json\n"
      "  cleave-server profile --of client.json --output server.json   # on the server\n"
      "  cleave-client plan --config configs/fashion_mnist.yaml --profile client.json \\\n"
      "    --server-profile server.json --rate 100Mbit/s --latency 10ms\n"
      "  cleave-client plan --workers 4x4 --profile vgg16.txt --rate 10Gbit/s \\\n"
      "    --batch 64 --epoch-samples 1281167   # one of PipeDream's profiles\n\n"
      "Of all plans whose step is at most {:.0f} % longer than the shortest one, {} More layers on "
      "the client reveal less about the data; --keep-cuts keeps your choice.\n\n"
      "Exit codes: 0 done, 2 usage error or no plan fits into memory.",
      100 * kPlanTolerance, kChoice));
  plan->callback([&command, plan, workers] {
    if (workers->count() == 0) {
      requireRunOptions(*plan);
      command = [] { return planCommand(options); };
      return;
    }
    ofWorkers.profile = options.profile;
    ofWorkers.rate = options.link.rate;
    ofWorkers.maxReplicas = options.replicas.value_or(0);
    ofWorkers.json = options.run.json;
    command = [] { return printWorkerPlan(ofWorkers); };
  });
}

}  // namespace cleave
