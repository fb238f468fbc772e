// Between LibTorch's tensors and ours.
#pragma once

#include <ATen/core/Tensor.h>

#include "common/codec/tensor.h"

namespace cleave {

// The one form a tensor has at a cut, in the split and in the whole model: dense in `order` and on
// a 64-byte boundary. Returns the tensor itself where it has that form already. Other forms would
// give other bits.
at::Tensor canonical(const at::Tensor& tensor, MemoryOrder order);

// The cut's memory order for a tensor of this rank: channels-last for [B, C, H, W], else
// contiguous.
MemoryOrder cutOrder(std::size_t rank);

// Requires a canonical tensor without gradient history; shares its memory, wherever it is.
Payload toPayload(const at::Tensor& tensor, MemoryOrder order);
// Shares the payload's memory, which is the host's or that of `device`. The result does not require
// a gradient.
at::Tensor toTensor(Payload payload, at::Device device = at::kCPU);

}  // namespace cleave
