// Optimizers, as a table: head, body and tail use the same one, each on its own parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/core/step.h"
#include "common/model/model.h"

namespace cleave {

struct OptimizerSpec {
  std::string name = "sgd";
  // Absent ones have the defaults of the table. Switches such as nesterov are 0 or 1.
  std::map<std::string, double> parameters;
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
  // Applies the decision to the parameters given at construction from their gradients, which it
  // multiplies by clipFactor first; parameters without a gradient stay as they are. Where
  // decision.apply is false, changes nothing.
  virtual void update(const StepDecision& decision) = 0;
};

struct OptimizerRow {
  std::string_view name;
  std::string_view description;  // one line
  std::span<const OptimizerParameterRow> parameters;
  // These take specs whose parameters are all there and within their ranges.
  void (*check)(const OptimizerSpec& spec);  // what concerns several parameters; throws UsageError
  std::unique_ptr<Optimizer> (*make)(const OptimizerSpec& spec,
                                     const std::vector<NamedTensor>& parameters);
  std::size_t (*stateBytes)(const OptimizerSpec& spec);  // a parameter element
};
std::span<const OptimizerRow> optimizerTable();

// Throws UsageError: unknown name or parameter (with the nearest known), out of range, Nesterov
// without momentum or with dampening.
std::unique_ptr<Optimizer> makeOptimizer(const OptimizerSpec& spec,
                                         const std::vector<NamedTensor>& parameters);
// The same checks, without parameters. For configs.
void checkOptimizer(const OptimizerSpec& spec);
// Bytes of state that a parameter element needs.
std::size_t optimizerStateBytes(const OptimizerSpec& spec);

}  // namespace cleave
