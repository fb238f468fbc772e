#include "client/planning/worker_plan.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <charconv>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <vector>

#include "common/core/error.h"
#include "common/core/terminal.h"
#include "common/core/units.h"
#include "common/predict/layer_profile.h"

namespace cleave {
namespace {

using Json = nlohmann::ordered_json;

// The search takes time and memory proportional to the square of layers x workers.
constexpr std::size_t kMaxSearched = 1 << 14;

struct Topology {
  std::uint32_t machines = 0, each = 0;  // workers of each machine

  std::uint32_t workers() const { return machines * each; }
};

Topology topologyFrom(const std::string& text) {
  Topology topology;
  const char* const end = text.data() + text.size();
  const auto machines = std::from_chars(text.data(), end, topology.machines);
  if (machines.ec == std::errc() && machines.ptr != end && *machines.ptr == 'x') {
    const auto each = std::from_chars(machines.ptr + 1, end, topology.each);
    constexpr std::uint32_t kMax = 1024;
    if (each.ec == std::errc() && each.ptr == end && topology.machines > 0 && topology.each > 0 &&
        topology.machines <= kMax && topology.each <= kMax) {
      return topology;
    }
  }
  throw UsageError("bad-value", fmt::format("--workers: '{}' is not a number of workers", text),
                   "give MACHINESxWORKERS, such as 4x4 for 4 machines with 4 GPUs each");
}

// A plan, and the same workers with data parallelism.
struct WorkerPlan {
  Topology topology;
  LayerProfile profile;
  Partition best, parallel;
  double bandwidth = 0;  // bytes per second of each worker

  // Seconds per epoch: unknown without a batch size.
  std::optional<double> epoch(const Partition& partition, std::uint64_t samples) const {
    if (samples == 0 || profile.batch == 0) return std::nullopt;
    return partition.seconds * static_cast<double>(samples) / profile.batch;
  }
};

// The rate of an unlimited link: faster than any memory.
double rateOf(const char* flag, const std::string& text) {
  const double rate = parseRate({flag, text});
  constexpr double kUnlimited = 1e12;
  return rate > 0 ? rate : kUnlimited;
}

WorkerPlan planFor(const WorkerPlanOptions& options) {
  WorkerPlan plan;
  plan.topology = topologyFrom(options.workers);
  // All workers of a machine share its link to the others.
  const double between = rateOf("--rate", options.rate) / plan.topology.each;
  const double inside = options.insideRate.empty() ? rateOf("--rate", options.rate)
                                                   : rateOf("--inside-rate", options.insideRate);
  plan.bandwidth = plan.topology.machines == 1 ? inside : between;
  plan.profile = readLayerProfile(options.profile, options.batch);
  const std::vector<LayerCosts>& layers = plan.profile.layers;
  const std::uint32_t workers = plan.topology.workers();
  if (layers.size() * workers > kMaxSearched) {
    throw UsageError(
        "bad-value",
        fmt::format("{} layers on {} workers are too many to plan", layers.size(), workers),
        fmt::format("give at most {} workers", kMaxSearched / layers.size()));
  }
  const std::uint32_t maxReplicas = options.maxReplicas == 0 ? workers : options.maxReplicas;
  const Cluster cluster{workers, plan.bandwidth, maxReplicas};
  if (layers.size() * maxReplicas < workers) {
    throw UsageError("bad-value",
                     fmt::format("{} layers with {} each cannot use {} workers", layers.size(),
                                 countText(maxReplicas, "replica"), workers),
                     "give fewer --workers, or more --replicas");
  }
  plan.best = bestPartition(layers, cluster);
  plan.parallel = partitionOf(layers, cluster, {{0, layers.size(), workers}});
  return plan;
}

Json toJson(const WorkerPlan& plan, const WorkerPlanOptions& options) {
  const Partition& best = plan.best;
  Json json = {{"configuration", configurationText(best)},
               {"workers", plan.topology.workers()},
               {"bandwidth", plan.bandwidth},
               {"seconds_per_batch", best.seconds},
               {"speed_up", plan.parallel.seconds / best.seconds},
               {"bytes_per_batch", best.bytes},
               {"stages", Json::array()}};
  for (std::size_t s = 0; s < best.stages.size(); ++s) {
    const PipelineStage& stage = best.stages[s];
    json["stages"].push_back({{"first", plan.profile.names[stage.first]},
                              {"last", plan.profile.names[stage.last - 1]},
                              {"layers", stage.last - stage.first},
                              {"workers", stage.replicas},
                              {"memory_bytes", best.memory[s]}});
  }
  json["data_parallel"] = {{"seconds_per_batch", plan.parallel.seconds},
                           {"bytes_per_batch", plan.parallel.bytes},
                           {"memory_bytes", plan.parallel.memory.front()}};
  if (const auto epoch = plan.epoch(best, options.epochSamples)) {
    json["seconds_per_epoch"] = *epoch;
    json["data_parallel"]["seconds_per_epoch"] = *plan.epoch(plan.parallel, options.epochSamples);
  }
  return json;
}

std::vector<std::uint32_t> workersOf(const Partition& partition) {
  std::vector<std::uint32_t> workers;
  for (const PipelineStage& stage : partition.stages) workers.push_back(stage.replicas);
  return workers;
}

void printText(const WorkerPlan& plan, const WorkerPlanOptions& options) {
  const Partition& best = plan.best;
  std::cout << fmt::format("configuration  {}: {} on {}, {} per worker\n\n",
                           configurationText(best), countText(best.stages.size(), "stage"),
                           countText(plan.topology.workers(), "worker"), rateText(plan.bandwidth))
            << fmt::format("  {:<7}{:>7}{:>9}{:>12}  {}\n", "stage", "layers", "workers", "memory",
                           "from … to");
  for (std::size_t s = 0; s < best.stages.size(); ++s) {
    const PipelineStage& stage = best.stages[s];
    std::cout << fmt::format("  {:<7}{:>7}{:>9}{:>12}  {} … {}\n", s + 1, stage.last - stage.first,
                             stage.replicas, bytesText(best.memory[s]),
                             plan.profile.names[stage.first], plan.profile.names[stage.last - 1]);
  }
  std::cout << fmt::format("\n  {:<15}{:>12}{:>12}{:>12}{:>14}\n", "", "ms/batch", "speed-up",
                           "bytes/batch", "epoch");
  const auto row = [&](const char* name, const Partition& partition) {
    const auto epoch = plan.epoch(partition, options.epochSamples);
    std::cout << fmt::format("  {:<15}{:>12.2f}{:>12.2f}{:>12}{:>14}\n", name,
                             1e3 * partition.seconds, plan.parallel.seconds / partition.seconds,
                             bytesText(partition.bytes), epoch ? durationText(*epoch) : "");
  };
  row("plan", best);
  row("data parallel", plan.parallel);
  std::cout << "\n"
            << wrappedFor(STDOUT_FILENO,
                          "memory: of a worker, for weights, gradients and what forward keeps, "
                          "without the optimizer's state\n",
                          2)
            << "\nTo run it, set model.cuts to the ends of these stages, and give their servers "
               "to 'train':\n\n"
            << fmt::format("  --server {}\n\n", fmt::join(serverPlaceholders(workersOf(best)), ","))
            << "The client itself computes the layers before the first cut and after the last "
               "one.\n"
            << std::flush;
}

}  // namespace

int printWorkerPlan(const WorkerPlanOptions& options) {
  const WorkerPlan plan = planFor(options);
  if (options.json) {
    std::cout << toJson(plan, options).dump(2) << std::endl;
  } else {
    printText(plan, options);
  }
  return 0;
}

std::vector<std::string> serverPlaceholders(std::span<const std::uint32_t> replicas) {
  std::vector<std::string> bodies;
  for (const std::uint32_t count : replicas) {
    const std::vector<std::string> addresses(count, "HOST:PORT");
    bodies.push_back(fmt::format("{}", fmt::join(addresses, "+")));
  }
  return bodies;
}

}  // namespace cleave
