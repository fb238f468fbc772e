// MobileNetV2 (Sandler et al., "MobileNetV2: inverted residuals and linear bottlenecks", CVPR
// 2018), with the names and shapes of torchvision's mobilenet_v2.
#include <algorithm>

#include "common/model/blocks.h"
#include "common/model/model.h"

namespace cleave {
namespace {

constexpr std::int64_t kStemChannels = 32;
constexpr std::int64_t kLastChannels = 1280;

// Table 2 of the paper: `count` bottlenecks of `channels`, the first of them with `stride`.
struct BottleneckRow {
  std::int64_t expansion, channels, count, stride;
};
constexpr BottleneckRow kBottlenecks[] = {
    {1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2},  {6, 64, 4, 2},
    {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1},
};

// Scales a channel count: rounds to a multiple of 8 that is at least 90 % of channels x width.
std::int64_t scaled(std::int64_t channels, double width) {
  constexpr std::int64_t kDivisor = 8;
  const double exact = static_cast<double>(channels) * width;
  const auto rounded = static_cast<std::int64_t>(exact + kDivisor / 2.0) / kDivisor * kDivisor;
  const std::int64_t result = std::max(kDivisor, rounded);
  return static_cast<double>(result) < 0.9 * exact ? result + kDivisor : result;
}

Conv2dOptions convolution(std::int64_t channels, std::int64_t kernel, std::int64_t stride,
                          std::int64_t groups = 1) {
  return {.channels = channels,
          .kernel = kernel,
          .stride = stride,
          .padding = kernel / 2,
          .groups = groups,
          .bias = false,
          .initial = InitialWeight::heFanOut};
}

// Convolution, batch norm and ReLU6, numbered 0 to 2 after `name`.
void convNormRelu6(BlockChain& chain, const std::string& name, const Conv2dOptions& options) {
  chain.conv2d(name + ".0", options);
  chain.batchNorm(name + ".1");
  chain.relu6(name + ".2");
}

// Expansion (unless the factor is 1), depthwise convolution, projection. The input is added if its
// shape allows.
void bottleneck(BlockChain& chain, const std::string& name, std::int64_t expansion,
                std::int64_t channels, std::int64_t stride) {
  const std::int64_t inputs = chain.shape()[0];
  const std::int64_t hidden = inputs * expansion;
  const auto layers = [&] {
    int layer = 0;
    const auto next = [&] { return name + ".conv." + std::to_string(layer++); };
    if (expansion != 1) convNormRelu6(chain, next(), convolution(hidden, 1, 1));
    convNormRelu6(chain, next(), convolution(hidden, 3, stride, hidden));
    chain.conv2d(next(), convolution(channels, 1, 1));
    chain.batchNorm(next());
  };
  if (stride == 1 && inputs == channels) {
    chain.residual(name, layers);
  } else {
    chain.group(name, layers);
  }
}

std::vector<BlockSpec> mobilenetV2Blocks(const ModelSpec& spec) {
  ModelParameters parameters(spec);
  const double width = parameters.number("width", 0.1, 4, 1);
  const std::string tail = parameters.choice("tail", {"global", "prototype"});
  const double dropout = tail == "global" ? parameters.number("dropout", 0, 0.9, 0.2) : 0;
  parameters.finish();

  BlockChain chain(spec);
  // Three blocks, so that the model can be cut between the stem's batch norm and its ReLU6.
  convNormRelu6(chain, "features.0", convolution(scaled(kStemChannels, width), 3, 2));
  int block = 1;
  for (const BottleneckRow& row : kBottlenecks) {
    for (std::int64_t b = 0; b < row.count; ++b) {
      bottleneck(chain, "features." + std::to_string(block++), row.expansion,
                 scaled(row.channels, width), b == 0 ? row.stride : 1);
    }
  }
  const std::string last = "features." + std::to_string(block);
  chain.group(last, [&] {
    convNormRelu6(chain, last, convolution(scaled(kLastChannels, std::max(1.0, width)), 1, 1));
  });
  if (tail == "prototype") {
    chain.relu("relu");
    chain.averagePool2d("pool", 4);
    chain.flatten("flatten");
  } else {
    chain.globalAveragePool("pool");
    if (dropout > 0) chain.dropout("classifier.0", dropout);
  }
  chain.linear("classifier.1", spec.classes, InitialWeight::small);
  return chain.take();
}

// Head: the stem's convolution and batch norm; tail: pooling and the classifier.
std::pair<int, int> mobilenetV2Cuts(const ModelSpec&) { return {2, 21}; }

}  // namespace

ModelRow mobilenetV2Model() {
  return {"mobilenet_v2",
          "MobileNetV2, for images of any size; accepts torchvision's published weights",
          "width=0.1..4 (1), tail=global|prototype (global), dropout=0..0.9 (0.2)",
          "{name: mobilenet_v2, width: 1}",
          mobilenetV2Blocks,
          mobilenetV2Cuts};
}

}  // namespace cleave
