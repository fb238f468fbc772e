#include "common/model/blocks.h"

#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <numeric>
#include <utility>

#include "common/core/random.h"
#include "common/model/torch_tensor.h"

namespace cleave {
namespace {

constexpr double kNormMomentum = 0.1;
constexpr double kNormEpsilon = 1e-5;
// So that sizes computed from a peer's model spec cannot overflow.
constexpr std::int64_t kMaxSampleElements = std::int64_t{1} << 31;
constexpr std::int64_t kMaxClasses = 1 << 20;

// Drawn in logical order, so that the memory order of a weight is no part of its value.
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

// A layer with weight and bias; `inputs` feed one output.
class WeightedBlock : public Block {
 public:
  WeightedBlock(std::uint64_t seed, const std::string& name, const Shape& weightShape,
                std::int64_t inputs)
      : weight_{name + ".weight", {}}, bias_{name + ".bias", {}} {
    const double bound = 1 / std::sqrt(static_cast<double>(inputs));
    weight_.tensor = uniformParameter(seed, weight_.name, weightShape, bound);
    bias_.tensor = uniformParameter(seed, bias_.name, {weightShape[0]}, bound);
  }
  std::vector<NamedTensor> parameters() const override { return {weight_, bias_}; }

 protected:
  NamedTensor weight_;
  NamedTensor bias_;
};

class Linear : public WeightedBlock {
 public:
  Linear(std::uint64_t seed, const std::string& name, std::int64_t inputs, std::int64_t outputs)
      : WeightedBlock(seed, name, {outputs, inputs}, inputs) {}
  at::Tensor forward(const at::Tensor& x, const BlockContext&) override {
    return at::linear(x, weight_.tensor, bias_.tensor);
  }
};

class Conv2d : public WeightedBlock {
 public:
  Conv2d(std::uint64_t seed, const std::string& name, std::int64_t inputs, std::int64_t outputs,
         std::int64_t kernel, std::int64_t padding)
      : WeightedBlock(seed, name, {outputs, inputs, kernel, kernel}, inputs * kernel * kernel),
        padding_(padding) {}
  at::Tensor forward(const at::Tensor& x, const BlockContext&) override {
    return at::conv2d(x, weight_.tensor, bias_.tensor, 1, padding_);
  }

 private:
  std::int64_t padding_;
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
                          kNormMomentum, kNormEpsilon, /*cudnn_enabled=*/false);
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
    // One memory order for input and mask: draws then belong to positions in memory, wherever the
    // model is cut.
    const at::Tensor x = canonical(input, cutOrder(static_cast<std::size_t>(input.dim())));
    at::Tensor mask = at::empty_like(x);
    fillDropoutMask(randomKey(context.seed, name_, {context.at.step, context.at.i}), p_,
                    {mask.mutable_data_ptr<float>(), static_cast<std::size_t>(mask.numel())});
    return x.mul(mask);
  }

 private:
  std::string name_;
  float p_;
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
  // One dimension is left for the batch.
  if (shape_.empty() || shape_.size() >= kMaxRank) {
    throw badShape("a sample has 1 to " + std::to_string(kMaxRank - 1) + " dimensions, not " +
                   toString(shape_));
  }
  std::int64_t count = 1;
  for (const std::int64_t size : shape_) {
    if (size < 1 || size > kMaxSampleElements / count) {
      throw badShape("a sample has 1 to 2^31 values, which " + toString(shape_) + " has not");
    }
    count *= size;
  }
  if (spec.classes < 2 || spec.classes > kMaxClasses) {
    throw UsageError("bad-classes", "a model tells 2 to " + std::to_string(kMaxClasses) +
                                        " classes apart, not " + std::to_string(spec.classes));
  }
}

BlockRow& BlockChain::append(const std::string& name) {
  BlockRow& row = rows_.emplace_back();
  row.name = name;
  row.outputShape = shape_;
  return row;
}

void BlockChain::requireRank(const std::string& name, std::size_t rank, const char* what) const {
  if (shape_.size() == rank) return;
  throw badShape("block " + name + " takes " + what + ", but gets " + toString(shape_) +
                 " a sample");
}

void BlockChain::linear(const std::string& name, std::int64_t outputs) {
  requireRank(name, 1, "one dimension of features");
  const std::int64_t inputs = shape_[0];
  shape_ = {outputs};
  BlockRow& row = append(name);
  row.parameterCount = inputs * outputs + outputs;
  row.make = [=](std::uint64_t seed) {
    return std::make_unique<Linear>(seed, name, inputs, outputs);
  };
}

void BlockChain::conv2d(const std::string& name, std::int64_t channels, std::int64_t kernel,
                        std::int64_t padding) {
  requireRank(name, 3, "images [channels, height, width]");
  const std::int64_t inputs = shape_[0];
  const std::int64_t height = shape_[1] + 2 * padding - kernel + 1;
  const std::int64_t width = shape_[2] + 2 * padding - kernel + 1;
  if (height < 1 || width < 1) {
    throw badShape("block " + name + " leaves nothing of " + toString(shape_) +
                   ": its windows are " + std::to_string(kernel) + " wide");
  }
  shape_ = {channels, height, width};
  BlockRow& row = append(name);
  row.parameterCount = channels * inputs * kernel * kernel + channels;
  row.make = [=](std::uint64_t seed) {
    return std::make_unique<Conv2d>(seed, name, inputs, channels, kernel, padding);
  };
}

void BlockChain::batchNorm(const std::string& name) {
  const std::int64_t channels = shape_[0];
  BlockRow& row = append(name);
  row.parameterCount = 2 * channels;
  row.bufferCount = 2 * channels + 1;
  row.normValuesPerSample = elementCount(shape_) / channels;
  row.make = [=](std::uint64_t) { return std::make_unique<BatchNorm>(name, channels); };
}

void BlockChain::relu(const std::string& name) {
  append(name).make = makeFunctionBlock([](const at::Tensor& x) { return at::relu(x); });
}

void BlockChain::maxPool2d(const std::string& name, std::int64_t size) {
  requireRank(name, 3, "images [channels, height, width]");
  if (shape_[1] < size || shape_[2] < size) {
    throw badShape("block " + name + " leaves nothing of " + toString(shape_) + ": it pools " +
                   std::to_string(size) + " x " + std::to_string(size) + " values into one");
  }
  shape_ = {shape_[0], shape_[1] / size, shape_[2] / size};
  append(name).make =
      makeFunctionBlock([size](const at::Tensor& x) { return at::max_pool2d(x, size); });
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

}  // namespace cleave
