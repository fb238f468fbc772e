#include "common/predict/partition.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace cleave {
namespace {

constexpr double kImpossible = std::numeric_limits<double>::infinity();

void check(const std::vector<LayerCosts>& layers, const Cluster& cluster) {
  if (layers.empty()) throw std::invalid_argument("a partition needs at least one layer");
  if (cluster.workers == 0) throw std::invalid_argument("a partition needs at least one worker");
  if (!(cluster.bandwidth > 0)) throw std::invalid_argument("the bandwidth is not positive");
  for (std::size_t l = 0; l < layers.size(); ++l) {
    for (const double cost : {layers[l].seconds, layers[l].outputBytes, layers[l].parameterBytes}) {
      if (cost >= 0 && std::isfinite(cost)) continue;
      throw std::invalid_argument("a cost of layer " + std::to_string(l) +
                                  " is negative or not finite");
    }
  }
}

// The formulas of partition.h.
class StageCosts {
 public:
  StageCosts(const std::vector<LayerCosts>& layers, const Cluster& cluster)
      : layers_(layers), bandwidth_(cluster.bandwidth), seconds_{0}, parameterBytes_{0} {
    for (const LayerCosts& layer : layers) {
      seconds_.push_back(seconds_.back() + layer.seconds);
      parameterBytes_.push_back(parameterBytes_.back() + layer.parameterBytes);
    }
  }

  double seconds(const PipelineStage& stage) const {
    const double computing = seconds_[stage.last] - seconds_[stage.first];
    const double working = (computing + syncBytes(stage) / bandwidth_) / stage.replicas;
    return std::max(working, inputBytes(stage) / bandwidth_);
  }
  double bytes(const PipelineStage& stage) const { return inputBytes(stage) + syncBytes(stage); }

 private:
  double syncBytes(const PipelineStage& stage) const {
    const double replicas = stage.replicas;
    return 2 * (replicas - 1) / replicas *
           (parameterBytes_[stage.last] - parameterBytes_[stage.first]);
  }
  double inputBytes(const PipelineStage& stage) const {
    return stage.first == 0 ? 0 : 2 * layers_[stage.first - 1].outputBytes;
  }

  const std::vector<LayerCosts>& layers_;
  double bandwidth_;
  std::vector<double> seconds_, parameterBytes_;  // sums over the layers before each position
};

// Finds the partition with the lowest cost for each number of stages. The cost of a partition is
// `join` of the costs of its stages, and must not decrease if a stage's cost increases.
class Search {
 public:
  using StageCost = std::function<double(const PipelineStage&)>;
  using Join = std::function<double(double, double)>;

  Search(std::size_t layers, std::uint32_t workers, StageCost cost, Join join)
      : layers_(layers), workers_(workers), cost_(std::move(cost)), join_(std::move(join)) {
    tables_.push_back(emptyTable());
    at(tables_[0], 0, 0).cost = 0;
  }

  // Cost of the best partition into one more stage than after the previous call.
  double addStage() {
    Table table = emptyTable();
    for (std::size_t last = tables_.size(); last <= layers_; ++last) {
      for (std::uint32_t used = 1; used <= workers_; ++used)
        at(table, last, used) = best(last, used);
    }
    tables_.push_back(std::move(table));
    return at(tables_.back(), layers_, workers_).cost;
  }

  // The best partition into as many stages as were added.
  std::vector<PipelineStage> stages() const {
    std::vector<PipelineStage> stages;
    std::size_t last = layers_;
    std::uint32_t used = workers_;
    for (std::size_t s = tables_.size() - 1; s > 0; --s) {
      stages.push_back(at(tables_[s], last, used).stage);
      last = stages.back().first;
      used -= stages.back().replicas;
    }
    std::reverse(stages.begin(), stages.end());
    return stages;
  }

 private:
  // The lowest cost of the first `last` layers on exactly `used` workers, and the last stage of
  // that partition.
  struct Cell {
    double cost = kImpossible;
    PipelineStage stage;
  };
  using Table = std::vector<Cell>;

  Table emptyTable() const { return Table((layers_ + 1) * (workers_ + 1)); }
  Cell& at(Table& table, std::size_t last, std::uint32_t used) const {
    return table[last * (workers_ + 1) + used];
  }
  const Cell& at(const Table& table, std::size_t last, std::uint32_t used) const {
    return table[last * (workers_ + 1) + used];
  }

  Cell best(std::size_t last, std::uint32_t used) const {
    Cell best;
    for (std::size_t first = 0; first < last; ++first) {
      for (std::uint32_t replicas = 1; replicas <= used; ++replicas) {
        const double before = at(tables_.back(), first, used - replicas).cost;
        if (before >= best.cost) continue;
        const PipelineStage stage{first, last, replicas};
        const double cost = join_(before, cost_(stage));
        if (cost < best.cost) best = {cost, stage};
      }
    }
    return best;
  }

  std::size_t layers_;
  std::uint32_t workers_;
  StageCost cost_;
  Join join_;
  std::vector<Table> tables_;  // per number of stages, from 0
};

}  // namespace

Partition bestPartition(const std::vector<LayerCosts>& layers, const Cluster& cluster,
                        double tolerance) {
  check(layers, cluster);
  const StageCosts costs(layers, cluster);
  const std::size_t maxStages = std::min<std::size_t>(layers.size(), cluster.workers);

  Search fastest(
      layers.size(), cluster.workers,
      [&](const PipelineStage& stage) { return costs.seconds(stage); },
      [](double a, double b) { return std::max(a, b); });
  std::vector<double> seconds;  // for 1, 2, … stages
  while (seconds.size() < maxStages) seconds.push_back(fastest.addStage());
  const double limit = *std::min_element(seconds.begin(), seconds.end()) * (1 + tolerance);

  Search smallest(
      layers.size(), cluster.workers,
      [&](const PipelineStage& stage) {
        return costs.seconds(stage) <= limit ? costs.bytes(stage) : kImpossible;
      },
      std::plus<>());
  Partition partition;
  for (const double each : seconds) {
    partition.bytes = smallest.addStage();
    if (each <= limit) break;
  }
  partition.stages = smallest.stages();
  for (const PipelineStage& stage : partition.stages) {
    partition.seconds = std::max(partition.seconds, costs.seconds(stage));
  }
  return partition;
}

}  // namespace cleave
