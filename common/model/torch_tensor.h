// Conversions between LibTorch's tensors and Cleave's.
#pragma once

#include <ATen/core/Tensor.h>

#include "common/codec/tensor.h"

namespace cleave {

// The only form a tensor has at a cut, in the split model and in the whole one: dense in `order`
// and aligned to 64 bytes. Returns the tensor itself if it already has that form. Results with any
// other form would not be bit-identical.
at::Tensor canonical(const at::Tensor& tensor, MemoryOrder order);

// The memory order at a cut for a tensor of this rank: channels-last for [B, C, H, W], contiguous
// otherwise.
MemoryOrder cutOrder(std::size_t rank);

// Requires a canonical tensor without gradient history. Shares its memory, on the host or the
// device.
Payload toPayload(const at::Tensor& tensor, MemoryOrder order);
// Shares the payload's memory, which is on the host or on `device`. The result does not require a
// gradient.
at::Tensor toTensor(Payload payload, at::Device device = at::kCPU);

}  // namespace cleave
