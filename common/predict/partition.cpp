#include "common/predict/partition.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>

namespace cleave {
namespace {

void check(const std::vector<LayerCosts>& layers, const Cluster& cluster) {
  if (layers.empty()) throw std::invalid_argument("a partition needs at least one layer");
  if (cluster.workers == 0) throw std::invalid_argument("a partition needs at least one worker");
  if (!(cluster.bandwidth > 0)) throw std::invalid_argument("the bandwidth is not positive");
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const LayerCosts& layer = layers[l];
    for (const double cost :
         {layer.seconds, layer.outputBytes, layer.parameterBytes, layer.savedBytes}) {
      if (cost >= 0 && std::isfinite(cost)) continue;
      throw std::invalid_argument(fmt::format("a cost of layer {} is negative or not finite", l));
    }
  }
}

// The formulas of partition.h.
class StageCosts {
 public:
  StageCosts(const std::vector<LayerCosts>& layers, const Cluster& cluster)
      : layers_(layers), bandwidth_(cluster.bandwidth), sums_(1) {
    check(layers, cluster);
    for (const LayerCosts& layer : layers) {
      const LayerCosts& before = sums_.back();
      sums_.push_back({before.seconds + layer.seconds, 0,
                       before.parameterBytes + layer.parameterBytes,
                       before.savedBytes + layer.savedBytes});
    }
  }

  double seconds(const PipelineStage& stage) const {
    const double computing = sum(stage, &LayerCosts::seconds);
    const double working = (computing + syncBytes(stage) / bandwidth_) / stage.replicas;
    return std::max(working, inputBytes(stage) / bandwidth_);
  }
  double bytes(const PipelineStage& stage) const { return inputBytes(stage) + syncBytes(stage); }
  // `workers`: of this stage and those after it.
  double memory(const PipelineStage& stage, std::uint32_t workers) const {
    const double inFlight = std::ceil(static_cast<double>(workers) / stage.replicas);
    return (inFlight + 1) * sum(stage, &LayerCosts::parameterBytes) +
           inFlight * sum(stage, &LayerCosts::savedBytes);
  }

 private:
  double sum(const PipelineStage& stage, double LayerCosts::*cost) const {
    return sums_[stage.last].*cost - sums_[stage.first].*cost;
  }
  double syncBytes(const PipelineStage& stage) const {
    const double replicas = stage.replicas;
    return 2 * (replicas - 1) / replicas * sum(stage, &LayerCosts::parameterBytes);
  }
  double inputBytes(const PipelineStage& stage) const {
    return stage.first == 0 ? 0 : 2 * layers_[stage.first - 1].outputBytes;
  }

  const std::vector<LayerCosts>& layers_;
  const double bandwidth_;
  std::vector<LayerCosts> sums_;  // over the layers before each position
};

// A stage, and the lowest cost of the layers and workers up to its end.
template <typename Cost>
struct BestEnd {
  std::optional<Cost> cost;
  PipelineStage stage;
};

// Finds the stages with the lowest cost of all layers on all workers. `join(cost, stage)` returns
// the cost with one more stage, or nothing if the stage may not be used. It must not be below
// `cost`, and must grow with it.
template <typename Cost, typename Join>
std::pair<Cost, std::vector<PipelineStage>> search(std::size_t layers, const Cluster& cluster,
                                                   const Join& join) {
  const std::size_t width = cluster.workers + std::size_t{1};
  std::vector<BestEnd<Cost>> ends((layers + 1) * width);
  ends[0].cost = Cost{};
  for (std::size_t last = 1; last <= layers; ++last) {
    for (std::uint32_t used = 1; used <= cluster.workers; ++used) {
      BestEnd<Cost>& best = ends[last * width + used];
      for (std::size_t first = 0; first < last; ++first) {
        for (std::uint32_t r = 1; r <= std::min(used, cluster.maxReplicas); ++r) {
          const std::optional<Cost>& before = ends[first * width + used - r].cost;
          if (!before || (best.cost && *before >= *best.cost)) continue;
          const PipelineStage stage{first, last, r};
          const std::optional<Cost> cost = join(*before, stage);
          if (cost && (!best.cost || *cost < *best.cost)) best = {cost, stage};
        }
      }
    }
  }
  const BestEnd<Cost>* end = &ends.back();
  if (!end->cost) throw std::invalid_argument("there are too few layers for these workers");
  std::vector<PipelineStage> stages;
  const Cost cost = *end->cost;
  std::size_t position = ends.size() - 1;
  while (position > 0) {
    stages.push_back(ends[position].stage);
    position -= (stages.back().last - stages.back().first) * width + stages.back().replicas;
  }
  std::reverse(stages.begin(), stages.end());
  return {cost, std::move(stages)};
}

}  // namespace

Partition partitionOf(const std::vector<LayerCosts>& layers, const Cluster& cluster,
                      std::vector<PipelineStage> stages) {
  const StageCosts costs(layers, cluster);
  Partition partition;
  std::uint32_t workers = 0;
  for (const PipelineStage& stage : stages) workers += stage.replicas;
  for (const PipelineStage& stage : stages) {
    partition.seconds = std::max(partition.seconds, costs.seconds(stage));
    partition.bytes += costs.bytes(stage);
    partition.memory.push_back(costs.memory(stage, workers));
    workers -= stage.replicas;
  }
  partition.stages = std::move(stages);
  return partition;
}

Partition bestPartition(const std::vector<LayerCosts>& layers, const Cluster& cluster,
                        double tolerance) {
  const StageCosts costs(layers, cluster);
  const double shortest =
      search<double>(layers.size(), cluster, [&](double before, const PipelineStage& stage) {
        return std::optional(std::max(before, costs.seconds(stage)));
      }).first;
  const double limit = shortest * (1 + tolerance);
  using Size = std::pair<std::size_t, double>;  // stages, bytes
  auto stages =
      search<Size>(layers.size(), cluster, [&](const Size& before, const PipelineStage& stage) {
        if (costs.seconds(stage) > limit) return std::optional<Size>();
        return std::optional<Size>({before.first + 1, before.second + costs.bytes(stage)});
      }).second;
  return partitionOf(layers, cluster, std::move(stages));
}

std::string configurationText(const Partition& partition) {
  const std::vector<PipelineStage>& stages = partition.stages;
  const bool isStraight = stages.size() > 1 &&
                          std::all_of(stages.begin(), stages.end(),
                                      [](const PipelineStage& each) { return each.replicas == 1; });
  if (isStraight) return "straight";
  std::string text;
  for (const PipelineStage& stage : stages) {
    text += fmt::format("{}{}", text.empty() ? "" : "-", stage.replicas);
  }
  return text;
}

}  // namespace cleave
