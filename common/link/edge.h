// Edges: direct links between the servers of two neighbouring bodies (proto/PROTOCOL.md, "Edges").
#pragma once

#include <cstddef>
#include <string_view>

namespace cleave {

inline constexpr std::string_view kDirectFeature = "direct";  // of a run that has edges
inline constexpr std::string_view kEdgeFeature = "edge";      // of an edge's connection
inline constexpr std::size_t kEdgeTokenBytes = 16;

}  // namespace cleave
