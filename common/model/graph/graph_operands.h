// The arguments of a graph's operators, as LibTorch expects them.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <vector>

#include "common/graph/graph.h"

namespace cleave {

// An argument of an operator, as far as it is known before the graph runs.
struct Operand {
  enum class Kind : std::uint8_t {
    constant,
    value,
    wrappedSize,  // a size for an operator that takes a tensor
    sizes,
    tensors,
    optionalTensors,
    device
  };
  Kind kind = Kind::constant;
  c10::IValue constant;
  c10::IValue inEvaluation;  // the constant's value in evaluation
  GraphIds ids;  // numbers of values, plus 1; 0: the size is in `integers`, or no tensor is given
  std::vector<std::int64_t> integers;
};

// The operand for an argument that the operator expects; `given`: null if the graph has the
// default. Throws UsageError "bad-graph" if the argument is missing or does not fit.
Operand operandFor(const wire::Node& node, const c10::Argument& expected,
                   const wire::Argument* given);
// The operand for an argument. `type`: what the operator expects; null for the operators on sizes.
Operand operandOf(const wire::Node& node, const wire::Argument& argument, const c10::Type* type);

// Whether this argument says if the operator runs in training.
bool isTrainFlag(const c10::Argument& argument);
// A number as a tensor, as in Python's x + 1: LibTorch chooses the result's dtype differently for
// numbers than for tensors.
at::Tensor wrapped(const at::Scalar& number);
// Returns the LibTorch dtype of a graph's value.
at::ScalarType scalarTypeOf(const wire::Value& value);

}  // namespace cleave
