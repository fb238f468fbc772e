// The table of optimizers. Head, body and tail use the same optimizer, each for its own parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/model.h"
#include "common/topology/step.h"

namespace cleave {

// Parameters with a learning rate or a weight decay of their own.
struct ParameterGroup {
  std::string match;                  // pattern of names, for matchesPattern()
  std::optional<double> weightDecay;  // nullopt: the optimizer's weight decay
  bool operator==(const ParameterGroup&) const = default;
};

struct OptimizerSpec {
  std::string name = "sgd";
  // Absent parameters have the table's defaults. Switches such as nesterov are 0 or 1.
  std::map<std::string, double> parameters;
  // A parameter belongs to the first group that matches it. StepDecision::learningRates has the
  // rate of parameters without a group, then the rate of each group.
  std::vector<ParameterGroup> groups = {};
  bool operator==(const OptimizerSpec&) const = default;
};

struct OptimizerParameterRow {
  std::string_view name;
  std::string_view range;  // "at least 0 and below 1"
  double defaultValue;
  bool (*accepts)(double value);  // false for NaN
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Applies the decision to the parameters given at construction, after multiplying their gradients
  // by clipFactor / lossScale. Parameters without a gradient do not change. Does nothing if
  // decision.apply is false.
  virtual void update(const StepDecision& decision) = 0;

  // The state that the optimizer keeps between steps, as tensors named "PARAMETER:WHAT", such as
  // "conv.weight:momentum". The tensors share the optimizer's memory. Parameters that never had a
  // gradient have no state.
  virtual std::vector<NamedTensor> state() const = 0;
  // Replaces the state with one that state() returned for equal parameters and an equal spec, so
  // that the next updates are bit-identical. Copies the tensors. If a tensor is missing, unknown or
  // has another shape, throws RunError "bad-checkpoint" and leaves the state unchanged.
  virtual void restore(const std::vector<NamedTensor>& state) = 0;
};

struct OptimizerRow {
  std::string_view name;
  std::string_view description;  // one line
  std::span<const OptimizerParameterRow> parameters;
  // The functions below require a spec that has all parameters, each within its range.
  void (*check)(const OptimizerSpec& spec);  // constraints between parameters; throws UsageError
  std::unique_ptr<Optimizer> (*make)(const OptimizerSpec& spec,
                                     const std::vector<NamedTensor>& parameters);
  std::size_t (*stateBytes)(const OptimizerSpec& spec);  // per parameter element
};
std::span<const OptimizerRow> optimizerTable();

// Throws UsageError for an unknown name or parameter (with the nearest known one), a value out of
// range, or Nesterov without momentum or with dampening.
std::unique_ptr<Optimizer> makeOptimizer(const OptimizerSpec& spec,
                                         const std::vector<NamedTensor>& parameters);
// Makes the same checks without creating an optimizer, for configurations.
void checkOptimizer(const OptimizerSpec& spec);
// Bytes of optimizer state per parameter element.
std::size_t optimizerStateBytes(const OptimizerSpec& spec);

}  // namespace cleave
