// Edges: direct links between the servers of two neighbouring bodies (proto/PROTOCOL.md, "Edges").
#pragma once

#include <cstddef>

namespace cleave {

inline constexpr std::size_t kEdgeTokenBytes = 16;

}  // namespace cleave
