#include "common/model/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>

#include <array>
#include <cstdio>
#include <span>
#include <stdexcept>
#include <utility>

#include "common/model/advice.h"

namespace cleave {
namespace {

struct ParameterRow {
  std::string_view name;
  std::string_view range;
  bool (*accepts)(double value);  // false for NaN
};

struct OptimizerRow {
  std::string_view name;
  std::span<const ParameterRow> parameters;
  void (*check)(const OptimizerSpec& spec);  // what concerns several parameters
  std::unique_ptr<Optimizer> (*make)(const OptimizerSpec& spec,
                                     const std::vector<NamedTensor>& parameters);
  std::size_t (*stateBytes)(const OptimizerSpec& spec);  // a parameter element
};

constexpr ParameterRow kSgdParameters[] = {
    {"momentum", "at least 0 and below 1", [](double v) { return v >= 0 && v < 1; }},
    {"dampening", "from 0 to 1", [](double v) { return v >= 0 && v <= 1; }},
    {"weight_decay", "from 0 to 10", [](double v) { return v >= 0 && v <= 10; }},
    {"nesterov", "0 or 1", [](double v) { return v == 0 || v == 1; }},
};

// All defaults are 0.
double valueOf(const OptimizerSpec& spec, const std::string& key) {
  const auto found = spec.parameters.find(key);
  return found == spec.parameters.end() ? 0 : found->second;
}

// PyTorch's SGD (torch/optim/sgd.py):
//   g = gradient + weight_decay * p
//   buffer = g at the first step, then momentum * buffer + (1 - dampening) * g
//   p = p - learningRate * (nesterov ? g + momentum * buffer : buffer)
class Sgd : public Optimizer {
 public:
  Sgd(const OptimizerSpec& spec, const std::vector<NamedTensor>& parameters)
      : momentum_(valueOf(spec, "momentum")),
        dampening_(valueOf(spec, "dampening")),
        weightDecay_(valueOf(spec, "weight_decay")),
        nesterov_(valueOf(spec, "nesterov") != 0),
        parameters_(parameters),
        buffers_(parameters.size()) {}

  void update(const StepDecision& decision) override {
    if (!decision.apply) return;
    const double learningRate = decision.learningRates.at(0);
    const at::NoGradGuard noGrad;
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      const at::Tensor& parameter = parameters_[p].tensor;
      at::Tensor gradient = parameter.grad();
      if (!gradient.defined()) continue;
      if (decision.clipFactor != 1) gradient = gradient.mul(decision.clipFactor);
      parameter.add_(direction(parameter, gradient, buffers_[p]), -learningRate);
    }
  }

 private:
  at::Tensor direction(const at::Tensor& parameter, at::Tensor gradient, at::Tensor& buffer) const {
    if (weightDecay_ != 0) gradient = gradient.add(parameter, weightDecay_);
    if (momentum_ == 0) return gradient;
    if (buffer.defined()) {
      buffer.mul_(momentum_).add_(gradient, 1 - dampening_);
    } else {
      buffer = gradient.clone();
    }
    return nesterov_ ? gradient.add(buffer, momentum_) : buffer;
  }

  double momentum_;
  double dampening_;
  double weightDecay_;
  bool nesterov_;
  std::vector<NamedTensor> parameters_;
  std::vector<at::Tensor> buffers_;  // by parameter; undefined before its first gradient
};

void checkSgd(const OptimizerSpec& spec) {
  if (valueOf(spec, "nesterov") == 0) return;
  if (valueOf(spec, "momentum") > 0 && valueOf(spec, "dampening") == 0) return;
  throw UsageError("bad-optimizer-parameter",
                   "optimizer sgd: nesterov needs a momentum above 0 and a dampening of 0",
                   "set momentum=0.9 and leave dampening out, or leave nesterov out");
}

std::unique_ptr<Optimizer> makeSgd(const OptimizerSpec& spec,
                                   const std::vector<NamedTensor>& parameters) {
  return std::make_unique<Sgd>(spec, parameters);
}

std::size_t sgdStateBytes(const OptimizerSpec& spec) {
  return valueOf(spec, "momentum") > 0 ? sizeof(float) : 0;
}

constexpr OptimizerRow kOptimizers[] = {
    {"sgd", kSgdParameters, checkSgd, makeSgd, sgdStateBytes},
};

template <typename Row>
const Row& find(std::span<const Row> rows, const std::string& name, const std::string& code,
                const std::string& sentence) {
  std::vector<std::string> known;
  for (const Row& row : rows) {
    if (row.name == name) return row;
    known.emplace_back(row.name);
  }
  throw UsageError(code, sentence, knownNames(name, known));
}

const OptimizerRow& checkedRow(const OptimizerSpec& spec) {
  const OptimizerRow& row = find(std::span<const OptimizerRow>(kOptimizers), spec.name,
                                 "unknown-optimizer", "there is no optimizer '" + spec.name + "'");
  const std::string prefix = "optimizer " + spec.name;
  for (const auto& [key, value] : spec.parameters) {
    const ParameterRow& parameter = find(row.parameters, key, "bad-optimizer-parameter",
                                         prefix + " has no parameter '" + key + "'");
    if (parameter.accepts(value)) continue;
    char text[32];
    std::snprintf(text, sizeof text, "%g", value);
    throw UsageError("bad-optimizer-parameter",
                     prefix + ": " + key + "=" + text + " is not " + std::string(parameter.range));
  }
  row.check(spec);
  return row;
}

}  // namespace

void checkOptimizer(const OptimizerSpec& spec) { checkedRow(spec); }

std::unique_ptr<Optimizer> makeOptimizer(const OptimizerSpec& spec,
                                         const std::vector<NamedTensor>& parameters) {
  return checkedRow(spec).make(spec, parameters);
}

std::size_t optimizerStateBytes(const OptimizerSpec& spec) {
  return checkedRow(spec).stateBytes(spec);
}

}  // namespace cleave
