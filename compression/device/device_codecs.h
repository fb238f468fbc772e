// Creates GPU implementations of codecs.
#pragma once

#include <memory>

#include "common/codec/device_codec.h"

namespace cleave {

class Gpu;

// Returns the GPU implementation of `codec`. These codecs have one: `fp16`, `bf16`, `uniform`,
// `block` without rotation, `sort` with select=sampled, and `topk`. Null for other codecs, whose
// tensors pass through host memory. Borrows the GPU.
std::shared_ptr<const DeviceCodec> makeDeviceCodec(const std::shared_ptr<const Codec>& codec,
                                                   Gpu& gpu);

}  // namespace cleave
