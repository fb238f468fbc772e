// A graph as it crosses the network: compressed, with limits.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "common/graph/graph.h"

namespace cleave {

// A packed graph must fit into a Hello. Graphs compress well, because their layers are alike: a
// transformer with 32 layers takes a few KiB.
inline constexpr std::size_t kMaxPackedGraphBytes = 48 << 10;

// Throws UsageError "graph-too-large" if the result is larger than that.
std::string packGraph(const wire::Graph& graph);

// Returns a valid graph. Throws UsageError "bad-graph".
wire::Graph unpackGraph(std::string_view packed);

}  // namespace cleave
