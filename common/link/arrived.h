// What has arrived at one end of a tensor link, over all its connections. When a connection
// replaces a broken one, each side sends the rest again.
#pragma once

#include <cstdint>

#include "common/topology/flow.h"

namespace cleave {

struct Arrived {
  struct OfFlow {
    std::uint64_t complete = 0;  // tensors or blobs of which every byte has arrived
    std::uint64_t bytes = 0;     // of the one after them
    bool operator==(const OfFlow&) const = default;
  };
  std::uint64_t control = 0;  // control frames, other than those that the connection handles itself
  FlowMap<OfFlow> flows;
  bool operator==(const Arrived&) const = default;
};

}  // namespace cleave
