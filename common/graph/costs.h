// The costs of the parts of a graph, estimated from shapes.
#pragma once

#include <cstddef>

#include "common/graph/graph.h"

namespace cleave {

struct GraphCosts {
  double parameters = 0;      // number of values in the parameters
  double weightBytes = 0;     // parameters, buffers and constants
  double flopsPerSample = 0;  // one forward: twice the multiplications of convolutions, linear
                              // layers, matrix products, attention and recurrent layers
};

// The costs of nodes [first, last) and of the weights that they use.
GraphCosts costsOf(const wire::Graph& graph, std::size_t first, std::size_t last);

}  // namespace cleave
