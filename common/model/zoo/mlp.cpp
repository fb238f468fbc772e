// A multi-layer perceptron for samples of any shape: `depth` hidden layers of equal width, then the
// classifier.
#include "common/model/blocks.h"
#include "common/model/model.h"

namespace cleave {
namespace {

std::vector<BlockSpec> mlpBlocks(const ModelSpec& spec) {
  ModelParameters parameters(spec);
  const std::int64_t width = parameters.integer("width", 1, 65536, 128);
  const std::int64_t depth = parameters.integer("depth", 1, 64, 2);
  const double dropout = parameters.number("dropout", 0, 0.9, 0);
  parameters.finish();

  BlockChain chain(spec);
  chain.flatten("flatten");
  for (std::int64_t layer = 1; layer <= depth; ++layer) {
    const std::string number = std::to_string(layer);
    chain.linear("fc" + number, width);
    chain.relu("relu" + number);
    if (dropout > 0) chain.dropout("dropout" + number, dropout);
  }
  chain.linear("fc_out", spec.classes);
  return chain.take();
}

// Head: flatten and the first layer; tail: the classifier. The body has at least the first layer's
// ReLU.
std::pair<int, int> mlpCuts(const ModelSpec& spec) {
  return {2, static_cast<int>(mlpBlocks(spec).size()) - 1};
}

}  // namespace

ModelRow mlpModel() {
  return {"mlp",
          "multi-layer perceptron, for samples of any shape",
          "width=1..65536 (128), depth=1..64 (2), dropout=0..0.9 (0)",
          "{name: mlp, width: 128}",
          mlpBlocks,
          mlpCuts};
}

}  // namespace cleave
