#include "common/model/blocks.h"

#include <ATen/ops/add.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/hardtanh.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "common/core/random.h"
#include "common/model/torch_tensor.h"

namespace cleave {
namespace {

constexpr double kNormMomentum = 0.1;
constexpr double kNormEpsilon = 1e-5;
// Limits that keep sizes computed from a peer's model spec from overflowing.
constexpr std::int64_t kMaxSampleElements = std::int64_t{1} << 31;
constexpr std::int64_t kMaxClasses = 1 << 20;

// Values are drawn in logical order, so that they do not depend on the weight's memory order.
at::Tensor uniformParameter(std::uint64_t seed, const std::string& name, const Shape& shape,
                            double bound) {
  at::Tensor values = at::empty(shape);
  const std::span<float> out(values.mutable_data_ptr<float>(),
                             static_cast<std::size_t>(values.numel()));
  fillUniform(randomKey(seed, name), out);
  const float scale = static_cast<float>(bound);
  for (float& value : out) value = (2 * value - 1) * scale;
  return canonical(values, cutOrder(shape.size())).set_requires_grad(true);
}

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

// A layer with a weight and possibly a bias.
struct WeightRow {
  std::string name;  // the layer's name
  Shape shape;       // the weight's shape: [outputs, …]
  std::int64_t fanIn = 1, fanOut = 1;
  bool hasBias = true;
  InitialWeight initial = InitialWeight::inverseFanIn;

  std::vector<TensorRow> tensors() const {
    std::vector<TensorRow> rows = {{name + ".weight", shape}};
    if (hasBias) rows.push_back({name + ".bias", {shape[0]}});
    return rows;
  }
};

class WeightedBlock : public Block {
 public:
  WeightedBlock(std::uint64_t seed, const WeightRow& row) : weight_{row.name + ".weight", {}} {
    const double bound = initialBound(row.initial, row.fanIn, row.fanOut);
    weight_.tensor = uniformParameter(seed, weight_.name, row.shape, bound);
    if (!row.hasBias) return;
    bias_.name = row.name + ".bias";
    const double biasBound = row.initial == InitialWeight::inverseFanIn ? bound : 0;
    bias_.tensor = uniformParameter(seed, bias_.name, {row.shape[0]}, biasBound);
  }
  std::vector<NamedTensor> parameters() const override {
    if (!bias_.tensor.defined()) return {weight_};
    return {weight_, bias_};
  }

 protected:
  NamedTensor weight_;
  NamedTensor bias_;  // undefined if the layer has none
};

class Linear : public WeightedBlock {
 public:
  using WeightedBlock::WeightedBlock;
  at::Tensor forward(const at::Tensor& x, const BlockContext&) override {
    return at::linear(x, weight_.tensor, bias_.tensor);
  }
};

class Conv2d : public WeightedBlock {
 public:
  Conv2d(std::uint64_t seed, const WeightRow& row, const Conv2dOptions& options)
      : WeightedBlock(seed, row), options_(options) {}
  at::Tensor forward(const at::Tensor& x, const BlockContext&) override {
    return at::conv2d(x, weight_.tensor, bias_.tensor, options_.stride, options_.padding, 1,
                      options_.groups);
  }

 private:
  Conv2dOptions options_;
};

class BatchNorm : public Block {
 public:
  BatchNorm(const std::string& name, std::int64_t channels)
      : weight_{name + ".weight", at::ones({channels}).set_requires_grad(true)},
        bias_{name + ".bias", at::zeros({channels}).set_requires_grad(true)},
        mean_{name + ".running_mean", at::zeros({channels})},
        variance_{name + ".running_var", at::ones({channels})},
        batches_{name + ".num_batches_tracked", at::zeros({}, at::kLong)} {}

  at::Tensor forward(const at::Tensor& x, const BlockContext& context) override {
    const bool training = context.at.phase == Phase::train;
    if (training) batches_.tensor.add_(1);
    return at::batch_norm(x, weight_.tensor, bias_.tensor, mean_.tensor, variance_.tensor, training,
                          kNormMomentum, kNormEpsilon, /*cudnn_enabled=*/true);
  }
  std::vector<NamedTensor> parameters() const override { return {weight_, bias_}; }
  std::vector<NamedTensor> buffers() const override { return {mean_, variance_, batches_}; }

 private:
  NamedTensor weight_, bias_, mean_, variance_, batches_;
};

class Dropout : public Block {
 public:
  Dropout(std::string name, double p) : name_(std::move(name)), p_(static_cast<float>(p)) {}

  at::Tensor forward(const at::Tensor& input, const BlockContext& context) override {
    if (context.at.phase != Phase::train) return input;
    // Input and mask have the same memory order, so that draws belong to positions in memory and do
    // not depend on where the model is cut.
    const at::Tensor x = canonical(input, cutOrder(static_cast<std::size_t>(input.dim())));
    at::Tensor mask = at::empty_like(x, at::TensorOptions().device(at::kCPU));
    fillDropoutMask(randomKey(context.seed, name_, {context.at.step, context.at.i}), p_,
                    {mask.mutable_data_ptr<float>(), static_cast<std::size_t>(mask.numel())});
    return x.mul(mask.to(x.device()));
  }

 private:
  std::string name_;
  float p_;
};

// Consecutive layers, optionally with the input added to the last one's output.
class JoinedBlock : public Block {
 public:
  JoinedBlock(std::vector<std::unique_ptr<Block>> layers, bool addInput)
      : layers_(std::move(layers)), addInput_(addInput) {}

  at::Tensor forward(const at::Tensor& input, const BlockContext& context) override {
    at::Tensor x = input;
    for (const auto& layer : layers_) x = layer->forward(x, context);
    return addInput_ ? at::add(input, x) : x;
  }
  std::vector<NamedTensor> parameters() const override { return collect(&Block::parameters); }
  std::vector<NamedTensor> buffers() const override { return collect(&Block::buffers); }

 private:
  std::vector<NamedTensor> collect(std::vector<NamedTensor> (Block::*of)() const) const {
    std::vector<NamedTensor> all;
    for (const auto& layer : layers_) {
      for (NamedTensor& tensor : (*layer.*of)()) all.push_back(std::move(tensor));
    }
    return all;
  }

  std::vector<std::unique_ptr<Block>> layers_;
  bool addInput_;
};

// A block without state.
class FunctionBlock : public Block {
 public:
  using Function = std::function<at::Tensor(const at::Tensor&)>;
  explicit FunctionBlock(Function function) : function_(std::move(function)) {}
  at::Tensor forward(const at::Tensor& x, const BlockContext&) override { return function_(x); }

 private:
  Function function_;
};

auto makeFunctionBlock(FunctionBlock::Function function) {
  return [function = std::move(function)](std::uint64_t) -> std::unique_ptr<Block> {
    return std::make_unique<FunctionBlock>(function);
  };
}

UsageError badShape(const std::string& sentence) {
  return UsageError("bad-sample-shape", sentence,
                    "choose another model, or inputs of another shape");
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
                                        " classes, not " + std::to_string(spec.classes));
  }
}

BlockRow& BlockChain::append(const std::string& name) {
  BlockRow& row = rows_.emplace_back();
  row.name = name;
  row.outputShape = shape_;
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
  const WeightRow weight{name, {outputs, inputs}, inputs, outputs, true, initial};
  BlockRow& row = append(name);
  row.tensors = weight.tensors();
  row.make = [weight](std::uint64_t seed) { return std::make_unique<Linear>(seed, weight); };
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
  const WeightRow weight{name,
                         {options.channels, inputs, kernel, kernel},
                         inputs * kernel * kernel,
                         options.channels / options.groups * kernel * kernel,
                         options.bias,
                         options.initial};
  BlockRow& row = append(name);
  row.tensors = weight.tensors();
  row.make = [=](std::uint64_t seed) { return std::make_unique<Conv2d>(seed, weight, options); };
}

void BlockChain::batchNorm(const std::string& name) {
  const std::int64_t channels = shape_[0];
  BlockRow& row = append(name);
  row.tensors = {{name + ".weight", {channels}},
                 {name + ".bias", {channels}},
                 {name + ".running_mean", {channels}, true},
                 {name + ".running_var", {channels}, true},
                 {name + ".num_batches_tracked", {}, true, at::kLong}};
  row.normValuesPerSample = elementCount(shape_) / channels;
  row.make = [=](std::uint64_t) { return std::make_unique<BatchNorm>(name, channels); };
}

void BlockChain::relu(const std::string& name) {
  append(name).make = makeFunctionBlock([](const at::Tensor& x) { return at::relu(x); });
}

void BlockChain::relu6(const std::string& name) {
  BlockRow& row = append(name);
  if (inGroup_) {
    // In place, since nothing else needs the output of the layer before it.
    row.savedPerSample = 0;
    row.make = makeFunctionBlock([](at::Tensor x) { return at::hardtanh_(x, 0, 6); });
  } else {
    row.make = makeFunctionBlock([](const at::Tensor& x) { return at::hardtanh(x, 0, 6); });
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
  append(name).make =
      makeFunctionBlock([size](const at::Tensor& x) { return at::max_pool2d(x, size); });
}

void BlockChain::averagePool2d(const std::string& name, std::int64_t size) {
  pool2d(name, size);
  append(name).make =
      makeFunctionBlock([size](const at::Tensor& x) { return at::avg_pool2d(x, size); });
}

void BlockChain::globalAveragePool(const std::string& name) {
  requireRank(name, 3, "images [channels, height, width]");
  shape_ = {shape_[0]};
  append(name).make = makeFunctionBlock([](const at::Tensor& x) { return x.mean({2, 3}); });
}

void BlockChain::flatten(const std::string& name) {
  shape_ = {elementCount(shape_)};
  append(name).make = makeFunctionBlock([](const at::Tensor& x) { return x.flatten(1); });
}

void BlockChain::dropout(const std::string& name, double p) {
  append(name).make = [=](std::uint64_t) { return std::make_unique<Dropout>(name, p); };
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
  inGroup_ = true;
  append();
  inGroup_ = false;
  if (addInput && shape_ != before) {
    throw std::logic_error("block " + name + " adds its input to an output of another shape");
  }

  BlockRow joined;
  joined.name = name;
  joined.outputShape = shape_;
  std::vector<std::function<std::unique_ptr<Block>(std::uint64_t)>> makers;
  for (std::size_t r = first; r < rows_.size(); ++r) {
    BlockRow& row = rows_[r];
    joined.tensors.insert(joined.tensors.end(), row.tensors.begin(), row.tensors.end());
    joined.savedPerSample += row.savedPerSample;
    if (row.normValuesPerSample > 0) {
      std::int64_t& fewest = joined.normValuesPerSample;
      fewest = fewest == 0 ? row.normValuesPerSample : std::min(fewest, row.normValuesPerSample);
    }
    makers.push_back(std::move(row.make));
  }
  if (addInput) joined.savedPerSample += elementCount(shape_);
  joined.make = [makers = std::move(makers), addInput](std::uint64_t seed) {
    std::vector<std::unique_ptr<Block>> layers;
    for (const auto& make : makers) layers.push_back(make(seed));
    return std::make_unique<JoinedBlock>(std::move(layers), addInput);
  };
  rows_.resize(first);
  rows_.push_back(std::move(joined));
}

}  // namespace cleave
