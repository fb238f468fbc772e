// Measures forward and backward of an exported model on demand: for each line of standard input,
// runs a step and prints its milliseconds. See overhead.py.
#include <ATen/ops/arange.h>
#include <ATen/ops/ones_like.h>

#include <iostream>
#include <string>
#include <vector>

#include "common/core/clock.h"
#include "common/files/environment.h"
#include "common/model/graph/graph_blocks.h"
#include "common/model/graph/graph_file.h"
#include "common/model/stage/stage.h"

namespace cleave {
namespace {

void run(const std::string& path, std::int64_t samples, std::int64_t tokens) {
  setComputeThreads(1);
  const GraphFile file(path);
  BlockSpec block = blockOfGraph("whole", file.graph());
  block.batchInputs = {0};
  const std::vector<BlockSpec> blocks = {block};
  const ModelPart part(blocks, 0, 1);
  ParameterSet set(blocks, 0, 1, /*seed=*/1);
  const at::Tensor ids = at::arange(samples * tokens).remainder(7).reshape({samples, tokens});
  std::uint64_t step = 0;
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<NormStatistics> statistics;
    const MicroBatch at{Phase::train, ++step, 0, {1, static_cast<std::uint32_t>(samples)}};
    const SteadyTime start = now();
    const at::Tensor output = part.forward({}, {ids}, set, {1, at, &statistics}).front();
    const SteadyTime middle = now();
    output.backward(at::ones_like(output));
    std::cout << "[" << secondsBetween(start, middle) * 1e3 << ", " << secondsSince(middle) * 1e3
              << "]" << std::endl;
    set.clearGradients();
  }
}

}  // namespace
}  // namespace cleave

int main(int argc, char** argv) {
  cleave::prepareProcess(argv);
  if (argc != 4) {
    std::cerr << "usage: bench_overhead MODEL.pt2 SAMPLES TOKENS" << std::endl;
    return 2;
  }
  cleave::run(argv[1], std::stoll(argv[2]), std::stoll(argv[3]));
}
