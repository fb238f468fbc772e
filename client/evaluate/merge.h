// Adds adapters to the weights that they change. Does not use Torch.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "common/codec/safetensors.h"

namespace cleave {

// Returns the model without adapters. Each adapted weight W becomes W + scale B A, computed in fp64
// and rounded once. `inputsFirst`: the modules whose W is [inputs, outputs]. The returned entries
// point to new values, which `memory` owns. Throws UsageError "bad-weights" if the adapters do not
// fit their weights.
std::vector<SafetensorsEntry> mergeAdapters(const std::vector<SafetensorsEntry>& entries,
                                            double scale,
                                            const std::vector<std::string>& inputsFirst,
                                            std::deque<std::vector<float>>& memory);

}  // namespace cleave
