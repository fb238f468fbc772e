// Conversions between LibTorch's tensors and Cleave's.
#pragma once

#include <ATen/core/Tensor.h>

#include "common/codec/tensor.h"

namespace cleave {

at::ScalarType scalarTypeOf(DType dtype);

// Converts a tensor to the form that every tensor at a cut has, in the split model and in the whole
// one: dense in `order` and aligned to 64 bytes. Returns the tensor itself if it already has that
// form. With any other form, results would not be bit-identical.
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
