#include "common/predict/partition.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

using namespace cleave;

namespace {

using Layers = std::vector<LayerCosts>;
using Stages = std::vector<PipelineStage>;

// ---- Brute force ----

struct Cost {
  double seconds = 0, bytes = 0;
};

Cost costOf(const Layers& layers, const Cluster& cluster, const Stages& stages) {
  Cost cost;
  for (const PipelineStage& stage : stages) {
    const double r = stage.replicas;
    double computing = 0, weights = 0;
    for (std::size_t l = stage.first; l < stage.last; ++l) {
      computing += layers[l].seconds;
      weights += layers[l].parameterBytes;
    }
    const double sync = 2 * (r - 1) / r * weights;
    const double input = stage.first == 0 ? 0 : 2 * layers[stage.first - 1].outputBytes;
    cost.seconds = std::max(
        {cost.seconds, (computing + sync / cluster.bandwidth) / r, input / cluster.bandwidth});
    cost.bytes += input + sync;
  }
  return cost;
}

// Appends all ways to add stages for the layers from `first` that use `workers` workers.
void addPartitions(std::size_t layers, std::size_t first, std::uint32_t workers, Stages& before,
                   std::vector<Stages>& all) {
  if (first == layers && workers == 0) all.push_back(before);
  for (std::size_t last = first + 1; last <= layers; ++last) {
    for (std::uint32_t replicas = 1; replicas <= workers; ++replicas) {
      before.push_back({first, last, replicas});
      addPartitions(layers, last, workers - replicas, before, all);
      before.pop_back();
    }
  }
}

// The lowest cost that the rules of bestPartition() allow, and its number of stages.
std::pair<Cost, std::size_t> bruteForce(const Layers& layers, const Cluster& cluster,
                                        double tolerance) {
  std::vector<Stages> all;
  Stages empty;
  addPartitions(layers.size(), 0, cluster.workers, empty, all);
  double fastest = std::numeric_limits<double>::infinity();
  for (const Stages& each : all) {
    fastest = std::min(fastest, costOf(layers, cluster, each).seconds);
  }
  std::pair<Cost, std::size_t> best{{}, std::numeric_limits<std::size_t>::max()};
  for (const Stages& each : all) {
    const Cost cost = costOf(layers, cluster, each);
    if (cost.seconds > fastest * (1 + tolerance) * (1 + 1e-12)) continue;
    if (std::pair(each.size(), cost.bytes) < std::pair(best.second, best.first.bytes)) {
      best = {cost, each.size()};
    }
  }
  return best;
}

void checkAgainstBruteForce(const Layers& layers, const Cluster& cluster, double tolerance) {
  const Partition found = bestPartition(layers, cluster, tolerance);
  const auto [cost, stages] = bruteForce(layers, cluster, tolerance);
  CHECK(found.stages.size() == stages);
  CHECK(found.bytes == Approx(cost.bytes));
  const Cost own = costOf(layers, cluster, found.stages);
  CHECK(found.seconds == Approx(own.seconds));
  CHECK(found.bytes == Approx(own.bytes));
}

}  // namespace

// The second and third layer have 100 MB of parameters each, which takes longer to send than to
// compute with. The first layer takes twice as long as each of them.
TEST_CASE("only the layers with few parameters are replicated") {
  const Layers layers = {{20e-3, 1e6, 1e6, 5e6}, {10e-3, 1e6, 100e6}, {10e-3, 0, 100e6}};
  const Cluster cluster{4, 1e9};
  const Partition found = bestPartition(layers, cluster);
  CHECK(found.stages == Stages{{0, 1, 2}, {1, 2, 1}, {2, 3, 1}});
  CHECK(found.seconds == Approx((20e-3 + 1e6 / 1e9) / 2));
  CHECK(found.bytes == Approx(2 * 1e6 + 2 * 1e6 + 1e6));
  CHECK(configurationText(found) == "2-1-1");
  // Four workers compute all stages: the first one's two workers have 2 batches in flight each.
  CHECK(found.memory == std::vector<double>{3 * 1e6 + 2 * 5e6, 3 * 100e6, 2 * 100e6});
  checkAgainstBruteForce(layers, cluster, 0.05);
}

TEST_CASE("brute force finds no better partition of random profiles") {
  std::mt19937 random(1);
  std::exponential_distribution<double> cost(1);
  for (int n = 0; n < 300; ++n) {
    Layers layers(1 + random() % 6);
    for (LayerCosts& layer : layers) layer = {cost(random), cost(random), cost(random)};
    const Cluster cluster{static_cast<std::uint32_t>(1 + random() % 5), 10 * cost(random)};
    checkAgainstBruteForce(layers, cluster, n % 2 == 0 ? 0.05 : 0.5);
    checkAgainstBruteForce(layers, cluster, 0);
  }
}

TEST_CASE("fewer stages are preferred if they are almost as fast") {
  // Without parameters, replicating both layers is as fast as one worker for each.
  const Layers layers = {{10e-3, 1e3, 0}, {10e-3, 0, 1e3}};
  const auto found = [&](double tolerance) {
    return configurationText(bestPartition(layers, {2, 1e9}, tolerance));
  };
  CHECK(found(0) == "straight");
  CHECK(found(0.05) == "2");
}

TEST_CASE("a limit of one replica makes the pipeline straight") {
  const Layers layers = {{20e-3, 1e6, 1e6}, {10e-3, 1e6, 1e6}, {10e-3, 0, 1e6}};
  CHECK(configurationText(bestPartition(layers, {3, 1e9})) == "3");
  CHECK(bestPartition(layers, {3, 1e9, 1}).stages == Stages{{0, 1, 1}, {1, 2, 1}, {2, 3, 1}});
  CHECK_THROWS_WITH(bestPartition(layers, {4, 1e9, 1}),
                    "there are too few layers for these workers");
}

TEST_CASE("a partition of impossible costs is refused") {
  const Layers layers = {{1, 1, 1}};
  CHECK_THROWS_AS(bestPartition({}, {1, 1}), std::invalid_argument);
  CHECK_THROWS_AS(bestPartition(layers, {0, 1}), std::invalid_argument);
  CHECK_THROWS_AS(bestPartition(layers, {1, 0}), std::invalid_argument);
  CHECK_THROWS_AS(bestPartition(layers, {1, std::nan("")}), std::invalid_argument);
  CHECK_THROWS_WITH(bestPartition({{1, 1, 1}, {1, -1, 1}}, {1, 1}),
                    "a cost of layer 1 is negative or not finite");
  CHECK_THROWS_AS(bestPartition({{std::nan(""), 1, 1}}, {1, 1}), std::invalid_argument);
}
