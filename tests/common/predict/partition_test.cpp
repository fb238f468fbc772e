#include "common/predict/partition.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <string>

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

// "2-1-1": the replicas of each stage.
std::string replicasOf(const Partition& partition) {
  std::string text;
  for (const PipelineStage& stage : partition.stages) {
    text += (text.empty() ? "" : "-") + std::to_string(stage.replicas);
  }
  return text;
}

// ---- The profiles that PipeDream's authors published ----

struct Node {
  LayerCosts costs;
  std::vector<std::string> inputs;
};

// A profile is a graph. Lines "node1 -- NAME -- forward_compute_time=MS, backward_compute_time=MS,
// activation_size=BYTES, parameter_size=BYTES" are followed by lines "<tab>node1 -- node2", one per
// edge. A node with several outputs has a list of sizes: [BYTES; BYTES].
std::vector<std::pair<std::string, Node>> readProfile(const std::string& path) {
  std::ifstream file(path);
  REQUIRE(file);
  std::vector<std::pair<std::string, Node>> nodes;
  const auto valueOf = [](const std::string& line, const std::string& key) {
    std::smatch match;
    REQUIRE(std::regex_search(line, match, std::regex(key + R"(=\[?([0-9.; ]+))")));
    std::istringstream values(match[1]);
    double sum = 0;
    for (std::string value; std::getline(values, value, ';');) sum += std::stod(value);
    return sum;
  };
  for (std::string line; std::getline(file, line);) {
    const std::size_t begin = line.starts_with('\t') ? 1 : 0;
    const std::size_t end = line.find(" -- ");
    const std::string first = line.substr(begin, end - begin);
    if (begin == 0) {
      nodes.push_back({first,
                       {{1e-3 * (valueOf(line, "forward_compute_time") +
                                 valueOf(line, "backward_compute_time")),
                         valueOf(line, "activation_size"), valueOf(line, "parameter_size")},
                        {}}});
    } else {
      const std::string second = line.substr(end + 4);
      const auto node = std::find_if(nodes.begin(), nodes.end(),
                                     [&](const auto& each) { return each.first == second; });
      REQUIRE(node != nodes.end());
      node->second.inputs.push_back(first);
    }
  }
  return nodes;
}

// Orders nodes so that each one is after its inputs; otherwise in the file's order.
void sortByInputs(std::vector<std::pair<std::string, Node>>& nodes) {
  std::set<std::string> done;
  for (auto next = nodes.begin(); next != nodes.end(); ++next) {
    const auto ready = std::find_if(next, nodes.end(), [&](const auto& each) {
      const auto& inputs = each.second.inputs;
      return std::all_of(inputs.begin(), inputs.end(),
                         [&](const std::string& input) { return done.count(input) > 0; });
    });
    REQUIRE(ready != nodes.end());
    std::rotate(next, ready, ready + 1);
    done.insert(next->first);
  }
}

// The graph as a chain. After each node, the outputs that any later node needs are sent. Nodes that
// take no time are merged into the node before them, because a cut there only adds choices.
Layers chainOf(const std::string& path) {
  std::vector<std::pair<std::string, Node>> nodes = readProfile(path);
  sortByInputs(nodes);
  Layers layers(1);
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    LayerCosts costs = nodes[n].second.costs;
    std::set<std::string> needed;
    for (std::size_t later = n + 1; later < nodes.size(); ++later) {
      needed.insert(nodes[later].second.inputs.begin(), nodes[later].second.inputs.end());
    }
    costs.outputBytes = 0;
    for (std::size_t earlier = 0; earlier <= n; ++earlier) {
      const auto& [name, node] = nodes[earlier];
      if (needed.count(name) > 0) costs.outputBytes += node.costs.outputBytes;
    }
    if (costs.seconds > 0 && layers.back().seconds > 0) layers.emplace_back();
    layers.back().seconds += costs.seconds;
    layers.back().outputBytes = costs.outputBytes;
    layers.back().parameterBytes += costs.parameterBytes;
  }
  return layers;
}

// 4 servers with 4 GPUs each and 10 Gbit/s, 2 servers with 8 GPUs each and 25 Gbit/s: the GPUs of a
// server share its network card. One server of the first kind has 4 GPUs on PCIe.
const Cluster kClusterA{16, 1.25e9 / 4}, kClusterB{16, 3.125e9 / 8}, kServerA{4, 5e9};

}  // namespace

TEST_CASE("published profiles lead to the partitions that PipeDream published for them") {
  const char* const folder = std::getenv("CLEAVE_PIPEDREAM");
  if (folder == nullptr) {
    WARN("skipped: CLEAVE_PIPEDREAM does not name a folder with PipeDream's profiles");
    return;
  }
  const auto found = [&](const std::string& name, const Cluster& cluster) {
    return replicasOf(bestPartition(chainOf(std::string(folder) + "/" + name), cluster));
  };
  for (const Cluster& cluster : {kClusterA, kClusterB}) {
    CHECK(found("vgg16.txt", cluster) == "15-1");
    CHECK(found("alexnet.txt", cluster) == "15-1");
    CHECK(found("resnet50.txt", cluster) == "16");
  }
  CHECK(found("gnmt.txt", kServerA) == "1-1-1-1");
  CHECK(found("gnmt_large.txt", kServerA) == "1-1-1-1");
}

// The second and third layer have 100 MB of parameters each, which takes longer to send than to
// compute with. The first layer takes twice as long as each of them.
TEST_CASE("only the layers with few parameters are replicated") {
  const Layers layers = {{20e-3, 1e6, 1e6}, {10e-3, 1e6, 100e6}, {10e-3, 0, 100e6}};
  const Cluster cluster{4, 1e9};
  const Partition found = bestPartition(layers, cluster);
  CHECK(found.stages == Stages{{0, 1, 2}, {1, 2, 1}, {2, 3, 1}});
  CHECK(found.seconds == Approx((20e-3 + 1e6 / 1e9) / 2));
  CHECK(found.bytes == Approx(2 * 1e6 + 2 * 1e6 + 1e6));
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
  CHECK(replicasOf(bestPartition(layers, {2, 1e9}, 0)) == "1-1");
  CHECK(replicasOf(bestPartition(layers, {2, 1e9}, 0.05)) == "2");
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
