// Where a tensor's features are in its memory. The features are the channels of [B, C, H, W], and
// the last dimension of other tensors.
#pragma once

#include <cstddef>

#include "common/codec/tensor.h"

namespace cleave {

// A tensor's memory as [outer, features, inner].
struct FeatureLayout {
  explicit FeatureLayout(const TensorSpec& spec) : elementBytes(dtypeBytes(spec.dtype)) {
    if (spec.shape.empty()) return;
    const bool areChannels = spec.shape.size() == 4;
    dimension = areChannels ? 1 : spec.shape.size() - 1;
    features = static_cast<std::size_t>(spec.shape[dimension]);
    if (areChannels && spec.order == MemoryOrder::contiguous) {
      inner = static_cast<std::size_t>(spec.shape[2] * spec.shape[3]);
    }
    outer = spec.elements() / features / inner;
  }

  std::size_t outer = 1, features = 1, inner = 1;
  std::size_t dimension = 0;  // of the features
  std::size_t elementBytes;
};

}  // namespace cleave
