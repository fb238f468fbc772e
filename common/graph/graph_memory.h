// The memory that a graph's tensors take when it runs, estimated from shapes, without its weights
// and their gradients.
#pragma once

#include "common/graph/graph.h"

namespace cleave {

// Bytes per sample of a micro-batch.
struct GraphMemory {
  double saved = 0;  // what a forward in training keeps for its backward, with inputs and outputs
  double peak = 0;   // the most in a forward in training and its backward; at least `saved`
  double inference = 0;  // the most in a forward without autograd
};

// Requires a valid graph. Follows the order in which GraphProgram runs: a tensor ends after the
// last node that reads it, unless autograd keeps it. What autograd keeps for an operator is listed
// in the source (as LibTorch's derivatives.yaml has it); for operators that are not listed: all
// tensors that it reads, its results, and as much again as its results. An operator's scratch
// memory is a multiple of its results; convolutions and recurrent layers have more.
GraphMemory memoryOf(const wire::Graph& graph);

}  // namespace cleave
