// Counts of what has arrived at one end of a tensor link, over all its connections. When a new
// connection replaces a broken one, each side sends what the other has not received.
#pragma once

#include <cstdint>

#include "common/topology/flow.h"

namespace cleave {

struct Arrived {
  struct OfFlow {
    std::uint64_t complete = 0;  // tensors or blobs that have arrived completely
    std::uint64_t bytes = 0;     // bytes of the next one that have arrived
    bool operator==(const OfFlow&) const = default;
  };
  std::uint64_t control = 0;  // control frames, except those that the connection handles itself
  FlowMap<OfFlow> flows;
  bool operator==(const Arrived&) const = default;
};

}  // namespace cleave
