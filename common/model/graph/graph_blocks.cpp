#include "common/model/graph/graph_blocks.h"

#include <stdexcept>
#include <utility>

#include "common/graph/graph_memory.h"
#include "common/model/graph/graph_program.h"

namespace cleave {
namespace {

BlockOutput outputOf(const wire::Value& value, std::size_t number) {
  BlockOutput output;
  output.shape.assign(value.shape().begin() + 1, value.shape().end());
  if (value.dtype() == "i64") {
    output.dtype = DType::i64;
  } else if (value.dtype() != "f32") {
    throw UsageError("bad-graph",
                     "a tensor of " + value.dtype() + " would cross a cut; only f32 and i64 can",
                     "export the model in fp32, with int64 for token ids and masks")
        .about("model.file");
  }
  output.tensor.hasGradient = isFloat(output.dtype);
  if (number > 0) output.tensor.name = "tensor" + std::to_string(number);
  return output;
}

template <typename Ids>
std::vector<BlockOutput> outputsOf(const wire::Graph& graph, const Ids& ids) {
  std::vector<BlockOutput> outputs;
  for (const std::uint32_t id : ids) {
    outputs.push_back(outputOf(graph.values(static_cast<int>(id)), outputs.size()));
  }
  return outputs;
}

void estimateMemory(const wire::Graph& graph, BlockSpec& block) {
  const auto valuesIn = [](double bytes) {
    return static_cast<std::int64_t>(std::min(bytes / sizeof(float), 0x1p50));
  };
  const GraphMemory memory = memoryOf(graph);
  const double inference =
      graph.has_evaluation() ? memoryOf(graph.evaluation()).inference : memory.inference;
  block.savedPerSample = valuesIn(memory.saved);
  block.passes = {valuesIn(memory.peak - memory.saved), valuesIn(inference)};
}

BlockSpec elsewhere(std::string name, std::vector<BlockOutput> outputs) {
  BlockSpec block;
  block.name = std::move(name);
  block.outputs = std::move(outputs);
  block.forward = [](const TensorList&, std::span<const at::Tensor>,
                     const BlockContext&) -> TensorList {
    throw std::logic_error("this part of the model is on the client");
  };
  return block;
}

std::vector<BlockSpec> blocksOf(const ModelSpec& spec) {
  if (spec.graphBlocks) return *spec.graphBlocks;
  throw UsageError("bad-model-parameter", "model graph has no file",
                   "set model.file to what cleave_split.export wrote")
      .about("model.file");
}

std::pair<int, int> cutsOf(const ModelSpec&) { return {1, 2}; }

}  // namespace

BlockSpec blockOfGraph(std::string name, const wire::Graph& graph) {
  const auto program = std::make_shared<const GraphProgram>(graph);
  BlockSpec block;
  block.name = std::move(name);
  block.outputs = outputsOf(graph, graph.outputs());
  block.tensors = program->weights();
  block.norms = program->norms();
  estimateMemory(graph, block);
  block.forward = [program](const TensorList& x, std::span<const at::Tensor> tensors,
                            const BlockContext& context) {
    return program->run(x, tensors, context);
  };
  return block;
}

GraphBlocks blocksOfParts(const GraphParts& parts, const std::vector<std::string>& names) {
  std::vector<BlockSpec> blocks = {blockOfGraph("head", parts.head.graph)};
  for (std::size_t b = 0; b < parts.bodies.size(); ++b) {
    const std::string number = parts.bodies.size() == 1 ? "" : std::to_string(b + 1);
    blocks.push_back(blockOfGraph("body" + number, parts.bodies[b].graph));
  }
  blocks.push_back(blockOfGraph("tail", parts.tail.graph));
  blocks.front().batchInputs = parts.head.batchInputs;
  blocks.back().batchInputs = parts.tail.batchInputs;
  for (std::size_t b = 0; b < names.size(); ++b) blocks.at(b).name = names[b];
  return std::make_shared<const std::vector<BlockSpec>>(std::move(blocks));
}

GraphBlocks blocksOfBody(const wire::Graph& body) {
  const auto isFloats = [&](std::uint32_t id) {
    return body.values(static_cast<int>(id)).dtype() == "f32";
  };
  if (!isFloats(body.inputs(0)) || !isFloats(body.outputs(0))) {
    throw UsageError("bad-graph", "the first tensor at a cut of the graph does not contain floats")
        .about("model.file");
  }
  return std::make_shared<const std::vector<BlockSpec>>(
      std::vector<BlockSpec>{elsewhere("head", outputsOf(body, body.inputs())),
                             blockOfGraph("body", body), elsewhere("tail", {})});
}

ModelRow graphModel() {
  return {"graph",  "a model of your own, exported from PyTorch: docs/models.md",
          "",       "{name: graph, file: model.pt2, cuts: [FIRST, SECOND]}",
          blocksOf, cutsOf};
}

}  // namespace cleave
