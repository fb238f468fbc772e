// What the parts of a graph cost, estimated from shapes.
#pragma once

#include <cstddef>

#include "common/graph/graph.h"

namespace cleave {

struct GraphCosts {
  double parameters = 0;      // values of parameters
  double weightBytes = 0;     // of parameters, buffers and constants
  double flopsPerSample = 0;  // of one forward: twice the multiplications of convolutions, linear
                              // layers, matrix products and attention
};

// Of the nodes [first, last), and the weights that they use.
GraphCosts costsOf(const wire::Graph& graph, std::size_t first, std::size_t last);

}  // namespace cleave
