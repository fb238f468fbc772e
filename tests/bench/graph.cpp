// Measures forward and backward of two MobileNetV2s: Cleave's own, and one that was exported from
// PyTorch. They take turns in one process. See graph.py.
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randn.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/core/clock.h"
#include "common/files/environment.h"
#include "common/model/graph/graph_blocks.h"
#include "common/model/graph/graph_file.h"
#include "common/model/stage/stage.h"
#include "common/model/torch_tensor.h"

namespace cleave {
namespace {

constexpr int kClasses = 10;

std::vector<BlockSpec> exported(const std::string& path) {
  const GraphFile file(path);
  BlockSpec block = blockOfGraph("whole", file.graph());
  block.batchInputs = {0};
  return {block};
}

// A whole model in training.
class Trained {
 public:
  explicit Trained(const std::vector<BlockSpec>& blocks)
      : part_(blocks, 0, static_cast<int>(blocks.size())),
        set_(blocks, 0, static_cast<int>(blocks.size()), 1) {}

  // Runs a step and returns its milliseconds.
  double step(const at::Tensor& images, const at::Tensor& labels) {
    const SteadyTime start = now();
    std::vector<NormStatistics> statistics;
    const auto samples = static_cast<std::uint32_t>(images.size(0));
    const BlockContext context{1, {Phase::train, 1, 0, {1, samples}}, &statistics};
    const at::Tensor logits = part_.forward({}, {images}, set_, context).front();
    at::cross_entropy_loss(logits, labels).backward();
    set_.addStatistics(statistics);
    set_.clearGradients();
    return secondsSince(start) * 1e3;
  }

 private:
  ModelPart part_;
  ParameterSet set_;
};

int run(const std::string& path, std::int64_t batch, std::int64_t size, int threads, int rounds) {
  setComputeThreads(threads);
  const ModelSpec spec{"mobilenet_v2", {{"tail", "global"}}, {3, size, size}, kClasses};
  Trained own(findModel("mobilenet_v2").blocks(spec)), graph(exported(path));
  const at::Tensor images = canonical(at::randn({batch, 3, size, size}), MemoryOrder::channelsLast);
  const at::Tensor labels = at::arange(batch).remainder(kClasses);
  std::vector<double> ofOwn, ofGraph;
  constexpr int kWarmUp = 2;
  for (int round = -kWarmUp; round < rounds; ++round) {
    const double a = own.step(images, labels), b = graph.step(images, labels);
    if (round < 0) continue;
    ofOwn.push_back(a);
    ofGraph.push_back(b);
  }
  std::cout << nlohmann::json{{"own", ofOwn}, {"graph", ofGraph}}.dump() << std::endl;
  return 0;
}

}  // namespace
}  // namespace cleave

int main(int argc, char** argv) {
  CLI::App app{"Times an exported MobileNetV2 against Cleave's own", "bench_graph"};
  std::string path;
  std::int64_t batch = 32, size = 96;
  int threads = 1, rounds = 20;
  app.add_option("FILE", path, "The exported model")->required();
  app.add_option("--batch", batch, "Images (32)");
  app.add_option("--size", size, "Their height and width (96)");
  app.add_option("--threads", threads, "Threads to compute with (1)");
  app.add_option("--rounds", rounds, "Timed steps of each (20)");
  CLI11_PARSE(app, argc, argv);
  cleave::prepareProcess(argv);  // must be the first call, because it re-executes the program
  return cleave::run(path, batch, size, threads, rounds);
}
