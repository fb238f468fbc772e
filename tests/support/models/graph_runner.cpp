// Runs forward and backward of one training step of an exported model, and writes the results, so
// that tests in Python can compare them with PyTorch's:
//
//   graph_runner MODEL.pt2 INPUTS.safetensors OUTPUTS.safetensors [CUT CUT…]
//   [lora=RANK:ALPHA:TARGET] [eval=SEED]
// INPUTS has the model's inputs by name, `labels`, and values for adapters. OUTPUTS gets `logits`,
// `loss`, `grad.NAME` of each parameter that has a gradient, and `buffer.NAME` after the step. With
// the names of two or more modules, the model is cut after each of them and runs as head, bodies
// and tail. With eval, runs an evaluation instead, and OUTPUTS gets only `logits`.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>

#include "common/graph/adapters.h"
#include "common/model/graph/graph_blocks.h"
#include "common/model/graph/graph_file.h"
#include "common/model/stage/stage.h"

namespace cleave {
namespace {

std::vector<NamedTensor> readTensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  return fromSafetensors(std::as_bytes(std::span(bytes.data(), bytes.size())), path);
}

// The model as one block, or as its parts.
std::vector<BlockSpec> blocksOf(const wire::Graph& graph, const std::vector<std::string>& names) {
  const GraphCuts cuts(graph);
  if (!names.empty()) {
    std::vector<GraphCut> chosen;
    for (const std::string& name : names) chosen.push_back(cuts.find(name));
    return *blocksOfParts(cuts.split(chosen));
  }
  BlockSpec block = blockOfGraph("whole", graph);
  for (int n = 0; n < graph.inputs_size(); ++n) {
    block.batchInputs.push_back(static_cast<std::size_t>(n));
  }
  return {block};
}

// "lora=8:16:query"
LoraSpec loraOf(const std::string& text) {
  const std::size_t rank = text.find('=') + 1, alpha = text.find(':') + 1;
  const std::size_t target = text.find(':', alpha) + 1;
  LoraSpec lora;
  lora.rank = std::stoll(text.substr(rank));
  lora.alpha = std::stod(text.substr(alpha));
  lora.targets = {text.substr(target)};
  return lora;
}

void writeTensors(const std::string& path, const std::vector<NamedTensor>& tensors) {
  const std::vector<std::byte> bytes = toSafetensors(tensors);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

int run(std::vector<std::string> arguments) {
  const GraphFile file(arguments.at(0));
  wire::Graph graph = file.graph();
  std::optional<std::uint64_t> evaluationSeed;
  if (arguments.back().starts_with("eval=")) {
    evaluationSeed = std::stoull(arguments.back().substr(5));
    arguments.pop_back();
  }
  if (arguments.back().starts_with("lora=")) {
    if (addAdapters(graph, loraOf(arguments.back())).empty())
      throw UsageError("bad-lora", "no target");
    arguments.pop_back();
  }
  const std::vector<BlockSpec> blocks = blocksOf(graph, {arguments.begin() + 3, arguments.end()});
  const int count = static_cast<int>(blocks.size());
  ParameterSet set(blocks, 0, count, 1);
  loadWeights(set, selectWeights(file.readWeights(), blocks, 0, count));

  std::map<std::string, at::Tensor> given;
  std::vector<NamedTensor> adapters;
  for (const NamedTensor& tensor : readTensors(arguments.at(1))) {
    given[tensor.name] = tensor.tensor;
    if (isAdapter(tensor.name)) adapters.push_back(tensor);
  }
  loadWeights(set, adapters);
  TensorList inputs;
  for (const std::string& name : file.inputNames()) inputs.push_back(given.at(name));

  std::vector<NormStatistics> statistics;
  const auto samples = static_cast<std::uint32_t>(inputs.at(0).size(0));
  std::vector<int> cutsInside;
  for (int cut = 1; cut < count; ++cut) cutsInside.push_back(cut);
  const ModelPart part(blocks, 0, count, cutsInside);
  if (evaluationSeed) {
    const at::NoGradGuard noGrad;
    const TensorList outputs = part.forward(
        {}, inputs, set, {*evaluationSeed, {Phase::eval, 1, 0, {1, samples}}, nullptr});
    writeTensors(arguments.at(2), {{"logits", outputs.front()}});
    return 0;
  }
  const at::Tensor logits =
      part.forward({}, inputs, set, {1, {Phase::train, 1, 0, {1, samples}}, &statistics}).front();
  const at::Tensor loss =
      at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), given.at("labels"));
  loss.backward();
  set.joinGradients();
  set.addStatistics(statistics);

  std::vector<NamedTensor> results = {{"logits", logits.detach()}, {"loss", loss.detach()}};
  for (NamedTensor& each : gradientsOf(set)) results.push_back({"grad." + each.name, each.tensor});
  for (const NamedTensor& each : set.buffers()) {
    results.push_back({"buffer." + each.name, each.tensor});
  }
  writeTensors(arguments.at(2), results);
  return 0;
}

}  // namespace
}  // namespace cleave

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr,
                 "usage: graph_runner MODEL INPUTS OUTPUTS [CUT CUT…] [lora=RANK:ALPHA:TARGET] "
                 "[eval=SEED]\n");
    return 2;
  }
  try {
    at::set_num_threads(1);
    return cleave::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "graph_runner: %s\n", error.what());
    return 1;
  }
}
