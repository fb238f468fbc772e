#include "common/model/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addcdiv.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/full.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <span>
#include <utility>

#include "common/codec/checkpoint_error.h"
#include "common/core/names.h"

namespace cleave {
namespace {

constexpr bool isRate(double v) { return v >= 0 && v < 1; }
constexpr bool isDecay(double v) { return v >= 0 && v <= 10; }

// Requires a spec that has all its parameters.
double valueOf(const OptimizerSpec& spec, const std::string& key) {
  return spec.parameters.at(key);
}

// The tensors of one parameter's state, by the WHAT in their names; see Optimizer::state().
using StateTensors = std::map<std::string, at::Tensor>;

RunError badState(const std::string& sentence) {
  return badCheckpoint("the optimizer's state " + sentence);
}

// Copies the tensor `what` to the parameter's device.
at::Tensor copyOf(const StateTensors& tensors, const std::string& what,
                  const at::Tensor& parameter) {
  const at::Tensor& tensor = tensors.at(what);
  if (tensor.sizes() != parameter.sizes() || tensor.scalar_type() != parameter.scalar_type()) {
    throw badState("has a " + what + " with another shape or type than its parameter");
  }
  return tensor.to(parameter.options(), false, true);
}

// Updates one parameter after another; each has its own state.
template <typename State>
class EachParameter : public Optimizer {
 public:
  EachParameter(const OptimizerSpec& spec, const std::vector<NamedTensor>& parameters)
      : parameters_(parameters), groupCount_(spec.groups.size()), states_(parameters.size()) {
    const double weightDecay = valueOf(spec, "weight_decay");
    for (const NamedTensor& parameter : parameters) {
      const auto group = std::find_if(
          spec.groups.begin(), spec.groups.end(),
          [&](const ParameterGroup& each) { return matchesPattern(parameter.name, each.match); });
      const bool hasGroup = group != spec.groups.end();
      groups_.push_back({hasGroup ? static_cast<std::size_t>(group - spec.groups.begin()) + 1 : 0,
                         hasGroup ? group->weightDecay.value_or(weightDecay) : weightDecay});
    }
  }

  void update(const StepDecision& decision) final {
    if (decision.learningRates.size() != groupCount_ + 1) {
      throw ProtocolError("bad-metadata", "a Step has " +
                                              std::to_string(decision.learningRates.size()) +
                                              " learning rates, but needs one for each of " +
                                              std::to_string(groupCount_) +
                                              " parameter groups and one for the other parameters");
    }
    if (!decision.apply) return;
    const at::NoGradGuard noGrad;
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      const at::Tensor& parameter = parameters_[p].tensor;
      at::Tensor gradient = parameter.grad();
      if (!gradient.defined()) continue;
      const double factor = decision.clipFactor / decision.lossScale;
      if (factor != 1) gradient = gradient.mul(factor);
      const Rates rates{decision.learningRates.at(groups_[p].number), groups_[p].weightDecay};
      updateOne(parameter, std::move(gradient), states_[p], rates);
    }
  }

  std::vector<NamedTensor> state() const final {
    std::vector<NamedTensor> all;
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      for (const auto& [what, tensor] : tensorsOf(states_[p])) {
        all.push_back({parameters_[p].name + ":" + what, tensor.detach()});
      }
    }
    return all;
  }

  void restore(const std::vector<NamedTensor>& state) final {
    std::map<std::string, StateTensors> byParameter;
    for (const NamedTensor& each : state) {
      const std::size_t colon = each.name.rfind(':');
      if (colon == std::string::npos) throw badState("has a tensor '" + each.name + "'");
      byParameter[each.name.substr(0, colon)][each.name.substr(colon + 1)] = each.tensor;
    }
    std::vector<State> states(parameters_.size());
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      const auto found = byParameter.find(parameters_[p].name);
      if (found == byParameter.end()) continue;
      states[p] = stateFrom(found->second, parameters_[p].tensor);
      byParameter.erase(found);
    }
    if (!byParameter.empty()) {
      throw badState("belongs to a parameter that the model does not have: " +
                     byParameter.begin()->first);
    }
    states_ = std::move(states);
  }

 protected:
  // The learning rate and weight decay of a parameter's group.
  struct Rates {
    double learning, weightDecay;
  };

  virtual StateTensors tensorsOf(const State& state) const = 0;
  // Throws the errors of restore().
  virtual State stateFrom(const StateTensors& tensors, const at::Tensor& parameter) const = 0;
  virtual void updateOne(const at::Tensor& parameter, at::Tensor gradient, State& state,
                         const Rates& rates) const = 0;

 private:
  struct Group {
    std::size_t number;  // index in StepDecision::learningRates
    double weightDecay;
  };

  std::vector<NamedTensor> parameters_;
  const std::size_t groupCount_;
  std::vector<Group> groups_;  // by parameter
  std::vector<State> states_;  // by parameter
};

// PyTorch's SGD (torch/optim/sgd.py):
//   g = gradient + weight_decay * p
//   buffer = g at the first step, then momentum * buffer + (1 - dampening) * g
//   p = p - learningRate * (nesterov ? g + momentum * buffer : buffer)
// The buffer is undefined before the first gradient.
class Sgd : public EachParameter<at::Tensor> {
 public:
  Sgd(const OptimizerSpec& spec, const std::vector<NamedTensor>& parameters)
      : EachParameter(spec, parameters),
        momentum_(valueOf(spec, "momentum")),
        dampening_(valueOf(spec, "dampening")),
        nesterov_(valueOf(spec, "nesterov") != 0) {}

 private:
  void updateOne(const at::Tensor& parameter, at::Tensor gradient, at::Tensor& buffer,
                 const Rates& rates) const override {
    if (rates.weightDecay != 0) gradient = gradient.add(parameter, rates.weightDecay);
    parameter.add_(direction(std::move(gradient), buffer), -rates.learning);
  }

  StateTensors tensorsOf(const at::Tensor& buffer) const override {
    return buffer.defined() ? StateTensors{{"momentum", buffer}} : StateTensors{};
  }
  at::Tensor stateFrom(const StateTensors& tensors, const at::Tensor& parameter) const override {
    if (tensors.size() != 1 || tensors.count("momentum") == 0 || momentum_ == 0) {
      throw badState("does not belong to sgd with this momentum");
    }
    return copyOf(tensors, "momentum", parameter);
  }

  at::Tensor direction(at::Tensor gradient, at::Tensor& buffer) const {
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
  bool nesterov_;
};

void checkSgd(const OptimizerSpec& spec) {
  if (valueOf(spec, "nesterov") == 0) return;
  if (valueOf(spec, "momentum") > 0 && valueOf(spec, "dampening") == 0) return;
  throw UsageError("bad-optimizer-parameter",
                   "optimizer sgd: nesterov needs a momentum above 0 and a dampening of 0",
                   "set momentum=0.9 and leave dampening out, or leave nesterov out");
}

std::size_t sgdStateBytes(const OptimizerSpec& spec) {
  return valueOf(spec, "momentum") > 0 ? sizeof(float) : 0;
}

constexpr OptimizerParameterRow kSgdParameters[] = {
    {"momentum", "at least 0 and below 1", 0, isRate},
    {"dampening", "from 0 to 1", 0, [](double v) { return v >= 0 && v <= 1; }},
    {"weight_decay", "from 0 to 10", 0, isDecay},
    {"nesterov", "0 or 1", 0, [](double v) { return v == 0 || v == 1; }},
};

// PyTorch's Adam and AdamW (torch/optim/adam.py, without amsgrad), for update t = 1, 2, …:
//   adam:  g = gradient + weight_decay * p          adamw: p = p - learningRate * weight_decay * p
//   m = m + (1 - beta1) * (g - m)
//   v = beta2 * v + (1 - beta2) * g²
//   p = p - learningRate / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
// t counts the updates in which the parameter had a gradient, separately for each parameter.
struct Moments {
  at::Tensor first, second;  // undefined before the first gradient
  std::uint64_t updates = 0;
};

class Adam : public EachParameter<Moments> {
 public:
  Adam(const OptimizerSpec& spec, const std::vector<NamedTensor>& parameters, bool decoupledDecay)
      : EachParameter(spec, parameters),
        beta1_(valueOf(spec, "beta1")),
        beta2_(valueOf(spec, "beta2")),
        epsilon_(valueOf(spec, "eps")),
        decoupledDecay_(decoupledDecay) {}

 private:
  StateTensors tensorsOf(const Moments& moments) const override {
    if (moments.updates == 0) return {};
    return {{"first", moments.first},
            {"second", moments.second},
            {"updates", at::full({}, static_cast<std::int64_t>(moments.updates), at::kLong)}};
  }
  Moments stateFrom(const StateTensors& tensors, const at::Tensor& parameter) const override {
    const auto updates = tensors.find("updates");
    const bool isWhole = tensors.size() == 3 && tensors.count("first") == 1 &&
                         tensors.count("second") == 1 && updates != tensors.end();
    if (!isWhole || updates->second.numel() != 1 || updates->second.scalar_type() != at::kLong ||
        updates->second.item<std::int64_t>() < 1) {
      throw badState("does not belong to adam");
    }
    return {copyOf(tensors, "first", parameter), copyOf(tensors, "second", parameter),
            static_cast<std::uint64_t>(updates->second.item<std::int64_t>())};
  }

  void updateOne(const at::Tensor& parameter, at::Tensor gradient, Moments& moments,
                 const Rates& rates) const override {
    if (moments.updates++ == 0) {
      moments.first = at::zeros_like(parameter);
      moments.second = at::zeros_like(parameter);
    }
    if (rates.weightDecay != 0) {
      if (decoupledDecay_) {
        parameter.mul_(1 - rates.learning * rates.weightDecay);
      } else {
        gradient = gradient.add(parameter, rates.weightDecay);
      }
    }
    moments.first.lerp_(gradient, 1 - beta1_);
    moments.second.mul_(beta2_).addcmul_(gradient, gradient, 1 - beta2_);
    const auto updates = static_cast<double>(moments.updates);
    const double correction1 = 1 - std::pow(beta1_, updates);
    const double correction2 = 1 - std::pow(beta2_, updates);
    const at::Tensor scale = moments.second.sqrt().div_(std::sqrt(correction2)).add_(epsilon_);
    parameter.addcdiv_(moments.first, scale, -rates.learning / correction1);
  }

  double beta1_;
  double beta2_;
  double epsilon_;
  bool decoupledDecay_;
};

constexpr OptimizerParameterRow kBeta1 = {"beta1", "at least 0 and below 1", 0.9, isRate};
constexpr OptimizerParameterRow kBeta2 = {"beta2", "at least 0 and below 1", 0.999, isRate};
constexpr OptimizerParameterRow kEpsilon = {"eps", "above 0 and at most 1", 1e-8,
                                            [](double v) { return v > 0 && v <= 1; }};
constexpr OptimizerParameterRow kAdamParameters[] = {
    kBeta1, kBeta2, kEpsilon, {"weight_decay", "from 0 to 10", 0, isDecay}};
constexpr OptimizerParameterRow kAdamWParameters[] = {
    kBeta1, kBeta2, kEpsilon, {"weight_decay", "from 0 to 10", 0.01, isDecay}};

void checkNothing(const OptimizerSpec&) {}
std::size_t twoMoments(const OptimizerSpec&) { return 2 * sizeof(float); }

template <typename Kind, auto... more>
std::unique_ptr<Optimizer> make(const OptimizerSpec& spec,
                                const std::vector<NamedTensor>& parameters) {
  return std::make_unique<Kind>(spec, parameters, more...);
}

constexpr OptimizerRow kOptimizers[] = {
    {"sgd", "stochastic gradient descent, with optional momentum", kSgdParameters, checkSgd,
     make<Sgd>, sgdStateBytes},
    {"adam", "Adam; weight decay is added to the gradient", kAdamParameters, checkNothing,
     make<Adam, false>, twoMoments},
    {"adamw", "Adam with decoupled weight decay", kAdamWParameters, checkNothing, make<Adam, true>,
     twoMoments},
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

struct Checked {
  const OptimizerRow& row;
  OptimizerSpec spec;  // with all parameters
};

Checked checked(const OptimizerSpec& spec) {
  const OptimizerRow& row = find(optimizerTable(), spec.name, "unknown-optimizer",
                                 "there is no optimizer '" + spec.name + "'");
  Checked result{row, {spec.name, {}, spec.groups}};
  for (const OptimizerParameterRow& parameter : row.parameters) {
    result.spec.parameters[std::string(parameter.name)] = parameter.defaultValue;
  }
  const std::string prefix = "optimizer " + spec.name;
  for (const auto& [key, value] : spec.parameters) {
    const OptimizerParameterRow& parameter = find(row.parameters, key, "bad-optimizer-parameter",
                                                  prefix + " has no parameter '" + key + "'");
    if (!parameter.accepts(value)) {
      char text[32];
      std::snprintf(text, sizeof text, "%g", value);
      const std::string range(parameter.range);
      throw UsageError("bad-optimizer-parameter",
                       prefix + ": " + key + "=" + text + " is not " + range,
                       "set " + key + " to a number " + range);
    }
    result.spec.parameters[key] = value;
  }
  for (const ParameterGroup& group : spec.groups) {
    if (!group.match.empty() && (!group.weightDecay || isDecay(*group.weightDecay))) continue;
    throw UsageError(
        "bad-optimizer-parameter",
        prefix + ": a group has no pattern, or a weight_decay that is not from 0 to 10",
        "write PATTERN:weight_decay=NUMBER");
  }
  row.check(result.spec);
  return result;
}

}  // namespace

std::span<const OptimizerRow> optimizerTable() { return kOptimizers; }

void checkOptimizer(const OptimizerSpec& spec) { checked(spec); }

std::unique_ptr<Optimizer> makeOptimizer(const OptimizerSpec& spec,
                                         const std::vector<NamedTensor>& parameters) {
  const Checked found = checked(spec);
  return found.row.make(found.spec, parameters);
}

std::size_t optimizerStateBytes(const OptimizerSpec& spec) {
  const Checked found = checked(spec);
  return found.row.stateBytes(found.spec);
}

}  // namespace cleave
