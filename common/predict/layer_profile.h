// The layers of a model as bestPartition() needs them, from a profile file: of `profile`, or in the
// text format that PipeDream's authors published.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/predict/partition.h"

namespace cleave {

struct LayerProfile {
  std::vector<std::string> names;  // of the layers
  std::vector<LayerCosts> layers;
  std::uint32_t batch = 0;  // samples of the batch that the costs are for; 0: unknown
};

// A text profile is a graph. Lines "node1 -- NAME -- forward_compute_time=MS,
// backward_compute_time=MS, activation_size=BYTES, parameter_size=BYTES" are followed by lines
// "<tab>node1 -- node2", one per edge. A node with several outputs has a list of sizes:
// [BYTES; BYTES]. The graph becomes a chain, in which each node is after its inputs. After each
// node, the outputs that any later node needs are sent. Nodes that take no time are merged into the
// node before them, because a cut there only adds choices.
//
// `batch`: samples per batch, for which the times of a JSON profile are interpolated; 0: as the
// profile's. A text profile is for a fixed batch, whose size it does not contain. Throws UsageError
// "bad-profile".
LayerProfile readLayerProfile(const std::string& path, std::uint32_t batch);

}  // namespace cleave
