#include "common/model/blocks.h"

#include <ATen/ops/add.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/hardtanh.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "common/core/random.h"
#include "common/model/torch_tensor.h"

namespace cleave {
namespace {

constexpr double kNormEpsilon = 1e-5;
// Limits that keep sizes computed from a peer's model spec from overflowing.
constexpr std::int64_t kMaxSampleElements = std::int64_t{1} << 31;
constexpr std::int64_t kMaxClasses = 1 << 20;

double initialBound(InitialWeight initial, std::int64_t fanIn, std::int64_t fanOut) {
  const double kUniform = std::sqrt(3.0);  // bound of a uniform distribution with std 1
  switch (initial) {
    case InitialWeight::heFanOut:
      return kUniform * std::sqrt(2 / static_cast<double>(fanOut));
    case InitialWeight::small:
      return kUniform * 0.01;
    case InitialWeight::inverseFanIn:
      break;
  }
  return 1 / std::sqrt(static_cast<double>(fanIn));
}

// Rows for a layer's weight [outputs, …] and, if it has one, its bias.
std::vector<ParameterSpec> weightRows(const std::string& layer, const Shape& shape, double bound,
                                      InitialWeight initial, bool hasBias) {
  std::vector<ParameterSpec> rows = {{.name = layer + ".weight", .shape = shape, .bound = bound}};
  if (hasBias) {
    const double biasBound = initial == InitialWeight::inverseFanIn ? bound : 0;
    rows.push_back({.name = layer + ".bias", .shape = {shape[0]}, .bound = biasBound});
  }
  return rows;
}

at::Tensor batchNormForward(const at::Tensor& x, std::span<const at::Tensor> tensors,
                            const BlockContext& context) {
  const at::Tensor &weight = tensors[0], &bias = tensors[1];
  if (context.at.phase != Phase::train) {
    return at::batch_norm(x, weight, bias, tensors[2], tensors[3], /*training=*/false,
                          kNormMomentum, kNormEpsilon, /*cudnn_enabled=*/true);
  }
  // With a momentum of 1, the statistics that LibTorch updates become those of this micro-batch.
  NormStatistics own{at::zeros_like(tensors[2]), at::zeros_like(tensors[3])};
  const at::Tensor y = at::batch_norm(x, weight, bias, own.mean, own.variance, /*training=*/true,
                                      /*momentum=*/1, kNormEpsilon, /*cudnn_enabled=*/true);
  if (context.statistics != nullptr) context.statistics->push_back(std::move(own));
  return y;
}

at::Tensor dropoutForward(const std::string& name, float p, const at::Tensor& input,
                          const BlockContext& context) {
  if (context.at.phase != Phase::train) return input;
  // Input and mask have the same memory order, so that each value's draw depends on its position in
  // memory, and not on the cuts.
  const at::Tensor x = canonical(input, cutOrder(static_cast<std::size_t>(input.dim())));
  at::Tensor mask = at::empty_like(x, at::TensorOptions().device(at::kCPU).dtype(at::kFloat));
  fillDropoutMask(randomKey(context.seed, name, {context.at.step, context.at.i}), p,
                  {mask.mutable_data_ptr<float>(), static_cast<std::size_t>(mask.numel())});
  return x.mul(mask.to(x.device(), x.scalar_type()));
}

// A block of one layer, with one input and one output.
template <typename Function>
BlockSpec::Forward ofLayer(Function function) {
  return [function = std::move(function)](const TensorList& x, std::span<const at::Tensor> tensors,
                                          const BlockContext& context) -> TensorList {
    return {function(x.front(), tensors, context)};
  };
}

// A layer that needs only its input.
template <typename Function>
BlockSpec::Forward ofInput(Function function) {
  return ofLayer([function = std::move(function)](const at::Tensor& x, std::span<const at::Tensor>,
                                                  const BlockContext&) { return function(x); });
}

UsageError badShape(const std::string& sentence) {
  return UsageError("bad-sample-shape", sentence,
                    "choose another model, or inputs of another shape")
      .about("model.name");
}

}  // namespace

std::string toString(const Shape& shape) {
  std::string text = "[";
  for (std::size_t d = 0; d < shape.size(); ++d) {
    text += (d > 0 ? ", " : "") + std::to_string(shape[d]);
  }
  return text + "]";
}

std::int64_t elementCount(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

BlockChain::BlockChain(const ModelSpec& spec) : shape_(spec.sampleShape) {
  // Leaves one dimension for the batch.
  if (shape_.empty() || shape_.size() >= kMaxRank) {
    throw badShape("a sample must have 1 to " + std::to_string(kMaxRank - 1) + " dimensions, not " +
                   toString(shape_));
  }
  std::int64_t count = 1;
  for (const std::int64_t size : shape_) {
    if (size < 1 || size > kMaxSampleElements / count) {
      throw badShape("a sample must have 1 to 2^31 values, and " + toString(shape_) + " does not");
    }
    count *= size;
  }
  if (spec.classes < 2 || spec.classes > kMaxClasses) {
    throw UsageError("bad-classes", "a model must have 2 to " + std::to_string(kMaxClasses) +
                                        " classes, not " + std::to_string(spec.classes))
        .about("data.classes");
  }
}

BlockSpec& BlockChain::append(const std::string& name) {
  BlockSpec& row = rows_.emplace_back();
  row.name = name;
  row.outputs = {{shape_}};
  row.savedPerSample = elementCount(shape_);
  return row;
}

void BlockChain::requireRank(const std::string& name, std::size_t rank, const char* what) const {
  if (shape_.size() == rank) return;
  throw badShape("block " + name + " requires " + what + ", but gets " + toString(shape_) +
                 " per sample");
}

void BlockChain::linear(const std::string& name, std::int64_t outputs, InitialWeight initial) {
  requireRank(name, 1, "one dimension of features");
  const std::int64_t inputs = shape_[0];
  shape_ = {outputs};
  BlockSpec& row = append(name);
  row.tensors = weightRows(name, {outputs, inputs}, initialBound(initial, inputs, outputs), initial,
                           /*hasBias=*/true);
  row.forward = ofLayer([](const at::Tensor& x, std::span<const at::Tensor> tensors,
                           const BlockContext&) { return at::linear(x, tensors[0], tensors[1]); });
}

void BlockChain::conv2d(const std::string& name, const Conv2dOptions& options) {
  requireRank(name, 3, "images [channels, height, width]");
  const std::int64_t kernel = options.kernel;
  const std::int64_t inputs = shape_[0] / options.groups;
  const auto positions = [&](std::int64_t size) {
    const std::int64_t room = size + 2 * options.padding - kernel;
    return room < 0 ? 0 : room / options.stride + 1;
  };
  const Shape after = {options.channels, positions(shape_[1]), positions(shape_[2])};
  if (after[1] < 1 || after[2] < 1) {
    throw badShape("block " + name + " is too large for " + toString(shape_) +
                   ": its windows are " + std::to_string(kernel) + " wide");
  }
  shape_ = after;
  const double bound = initialBound(options.initial, inputs * kernel * kernel,
                                    options.channels / options.groups * kernel * kernel);
  BlockSpec& row = append(name);
  row.tensors = weightRows(name, {options.channels, inputs, kernel, kernel}, bound, options.initial,
                           options.bias);
  row.forward = ofLayer(
      [options](const at::Tensor& x, std::span<const at::Tensor> tensors, const BlockContext&) {
        const at::Tensor bias = options.bias ? tensors[1] : at::Tensor();
        return at::conv2d(x, tensors[0], bias, options.stride, options.padding, 1, options.groups);
      });
}

void BlockChain::batchNorm(const std::string& name) {
  const std::int64_t channels = shape_[0];
  BlockSpec& row = append(name);
  row.tensors = {
      {.name = name + ".weight", .shape = {channels}, .initial = 1},
      {.name = name + ".bias", .shape = {channels}},
      {.name = name + ".running_mean", .shape = {channels}, .isBuffer = true},
      {.name = name + ".running_var", .shape = {channels}, .isBuffer = true, .initial = 1},
      {.name = name + ".num_batches_tracked", .shape = {}, .isBuffer = true, .type = at::kLong}};
  row.norms = {{.mean = 2,
                .variance = 3,
                .count = 4,
                .momentum = kNormMomentum,
                .valuesPerSample = elementCount(shape_) / channels}};
  row.forward = ofLayer(batchNormForward);
}

void BlockChain::relu(const std::string& name) {
  append(name).forward = ofInput([](const at::Tensor& x) { return at::relu(x); });
}

void BlockChain::relu6(const std::string& name) {
  BlockSpec& row = append(name);
  const std::size_t layer = rows_.size() - 1;
  if (layer > group_.value_or(layer)) {
    // Runs in place: nothing else needs the output of the previous layer in the group.
    row.savedPerSample = 0;
    row.forward = ofInput([](at::Tensor x) { return at::hardtanh_(x, 0, 6); });
  } else {
    row.forward = ofInput([](const at::Tensor& x) { return at::hardtanh(x, 0, 6); });
  }
}

void BlockChain::pool2d(const std::string& name, std::int64_t size) {
  requireRank(name, 3, "images [channels, height, width]");
  if (shape_[1] < size || shape_[2] < size) {
    throw badShape("block " + name + " is too large for " + toString(shape_) + ": it pools " +
                   std::to_string(size) + " x " + std::to_string(size) + " values into one");
  }
  shape_ = {shape_[0], shape_[1] / size, shape_[2] / size};
}

void BlockChain::maxPool2d(const std::string& name, std::int64_t size) {
  pool2d(name, size);
  BlockSpec& row = append(name);
  row.savedPerSample *= 3;  // with each maximum, its position in 64 bits
  row.forward = ofInput([size](const at::Tensor& x) { return at::max_pool2d(x, size); });
}

void BlockChain::averagePool2d(const std::string& name, std::int64_t size) {
  pool2d(name, size);
  append(name).forward = ofInput([size](const at::Tensor& x) { return at::avg_pool2d(x, size); });
}

void BlockChain::globalAveragePool(const std::string& name) {
  requireRank(name, 3, "images [channels, height, width]");
  shape_ = {shape_[0]};
  append(name).forward = ofInput([](const at::Tensor& x) { return x.mean({2, 3}); });
}

void BlockChain::flatten(const std::string& name) {
  shape_ = {elementCount(shape_)};
  append(name).forward = ofInput([](const at::Tensor& x) { return x.flatten(1); });
}

void BlockChain::dropout(const std::string& name, double p) {
  append(name).forward =
      ofLayer([name, p = static_cast<float>(p)](const at::Tensor& x, std::span<const at::Tensor>,
                                                const BlockContext& context) {
        return dropoutForward(name, p, x, context);
      });
}

std::vector<BlockSpec> BlockChain::take() {
  if (!rows_.empty()) rows_.front().batchInputs = {0};
  return std::move(rows_);
}

void BlockChain::group(const std::string& name, const std::function<void()>& append) {
  join(name, append, false);
}

void BlockChain::residual(const std::string& name, const std::function<void()>& append) {
  join(name, append, true);
}

void BlockChain::join(const std::string& name, const std::function<void()>& append, bool addInput) {
  const std::size_t first = rows_.size();
  const Shape before = shape_;
  group_ = first;
  append();
  group_.reset();
  if (addInput && shape_ != before) {
    throw std::logic_error("block " + name + " adds its input to an output of another shape");
  }
  const auto layers = rows_.begin() + static_cast<std::ptrdiff_t>(first);
  BlockSpec joined = joinBlocks(
      name, {std::make_move_iterator(layers), std::make_move_iterator(rows_.end())}, addInput);
  rows_.resize(first);
  rows_.push_back(std::move(joined));
}

BlockSpec joinBlocks(const std::string& name, std::vector<BlockSpec> blocks, bool addInput) {
  BlockSpec joined;
  joined.name = name;
  joined.outputs = blocks.back().outputs;
  joined.batchInputs = blocks.front().batchInputs;
  struct Layer {
    BlockSpec::Forward forward;
    std::size_t tensors;  // number of tensors that the layer takes
  };
  std::vector<Layer> layers;
  for (BlockSpec& block : blocks) {
    for (NormRow norm : block.norms) {
      norm.mean += joined.tensors.size();
      norm.variance += joined.tensors.size();
      *norm.count += joined.tensors.size();
      joined.norms.push_back(norm);
    }
    joined.tensors.insert(joined.tensors.end(), block.tensors.begin(), block.tensors.end());
    joined.savedPerSample += block.savedPerSample;
    layers.push_back({std::move(block.forward), block.tensors.size()});
  }
  if (addInput) joined.savedPerSample += elementCount(joined.outputShape());
  joined.forward = [layers = std::move(layers), addInput](const TensorList& input,
                                                          std::span<const at::Tensor> tensors,
                                                          const BlockContext& context) {
    TensorList x = input;
    for (const Layer& layer : layers) {
      x = layer.forward(x, tensors.first(layer.tensors), context);
      tensors = tensors.subspan(layer.tensors);
    }
    return addInput ? TensorList{at::add(input.front(), x.front())} : x;
  };
  return joined;
}

}  // namespace cleave
