// Random calls of the operators that graphs may use, with legal and with hostile arguments.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/graph/graph.h"
#include "common/model/model.h"
#include "common/topology/step.h"

namespace cleave::test {

// One graph with its inputs. All of it depends on the operator and the seed alone.
struct OperatorCase {
  wire::Graph graph;
  TensorList inputs;
  Phase phase = Phase::train;
  std::string text;  // the operator with its arguments, for people
};

// `op`: a name in operatorTable().
OperatorCase makeCase(const std::string& op, std::uint64_t seed);

// Runs the graph forward, and backward if one of its outputs has a gradient. Returns the outputs
// and the gradients of the inputs. Throws what a server reports to its client.
TensorList runCase(const OperatorCase& given);

}  // namespace cleave::test
