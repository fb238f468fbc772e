// Optimizers, as a table: head, body and tail use the same one, each on its own parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/core/step.h"
#include "common/model/model.h"

namespace cleave {

struct OptimizerSpec {
  std::string name = "sgd";
  std::map<std::string, double>
      parameters;  // sgd: momentum, dampening, weight_decay, nesterov (0 or 1)
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Applies the decision to the parameters given at construction from their gradients, which it
  // multiplies by clipFactor first; parameters without a gradient stay as they are. Where
  // decision.apply is false, changes nothing.
  virtual void update(const StepDecision& decision) = 0;
};

// Throws UsageError: unknown name or parameter (with the nearest known), out of range, Nesterov
// without momentum or with dampening.
std::unique_ptr<Optimizer> makeOptimizer(const OptimizerSpec& spec,
                                         const std::vector<NamedTensor>& parameters);
// The same checks, without parameters. For configs.
void checkOptimizer(const OptimizerSpec& spec);
// Bytes of state a parameter element needs: 4 for SGD with momentum, else 0.
std::size_t optimizerStateBytes(const OptimizerSpec& spec);

}  // namespace cleave
