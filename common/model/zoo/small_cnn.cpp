// A small convolutional network with batch norm, for small images such as Fashion-MNIST's 28 x 28
// (29,290 parameters there at the default width).
#include "common/model/blocks.h"
#include "common/model/model.h"

namespace cleave {
namespace {

std::vector<BlockSpec> smallCnnBlocks(const ModelSpec& spec) {
  ModelParameters parameters(spec);
  const std::int64_t width = parameters.integer("width", 4, 512, 16);
  const double dropout = parameters.number("dropout", 0, 0.9, 0.1);
  parameters.finish();

  BlockChain chain(spec);
  for (std::int64_t layer = 1; layer <= 3; ++layer) {
    const std::string number = std::to_string(layer);
    chain.conv2d("conv" + number, {.channels = width << (layer - 1), .kernel = 3, .padding = 1});
    // Pooling comes before batch norm and ReLU, so that those process a quarter of the values.
    chain.maxPool2d("pool" + number, 2);
    chain.batchNorm("bn" + number);
    chain.relu("relu" + number);
  }
  chain.flatten("flatten");
  if (dropout > 0) chain.dropout("dropout", dropout);
  chain.linear("fc", spec.classes);
  return chain.take();
}

// Head: conv1 to relu1; tail: everything after flatten.
std::pair<int, int> smallCnnCuts(const ModelSpec&) { return {4, 13}; }

}  // namespace

ModelRow smallCnnModel() {
  return {
      "small_cnn",
      "three convolutions with batch norm, for images [channels, height, width] of at least 8 x 8",
      "width=4..512 (16), dropout=0..0.9 (0.1)",
      "{name: small_cnn, width: 16}",
      smallCnnBlocks,
      smallCnnCuts};
}

}  // namespace cleave
