// The codecs that have a GPU implementation.
#pragma once

#include <memory>

#include "common/codec/device_codec.h"

namespace cleave {

class Gpu;

// Null if `codec` has no GPU implementation: its tensors then pass through host memory. `fp16`,
// `bf16`, `uniform`, `block`, `sort` with select=sampled, and `topk` have one. Borrows the GPU.
std::shared_ptr<const DeviceCodec> makeDeviceCodec(const std::shared_ptr<const Codec>& codec,
                                                   Gpu& gpu);

}  // namespace cleave
