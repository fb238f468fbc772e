// Codecs for tensors in the memory of a compute device, such as a GPU. Payloads are in host memory
// and have the same format as those of the host codec, so a peer cannot detect which one encoded
// them.
#pragma once

#include <cstddef>
#include <memory>

#include "common/codec/codec.h"
#include "common/codec/spec.h"

namespace cleave {

// encode() takes views of device memory that is no longer being written. decode() writes to memory
// that allocate() returned. Both return when the device has finished. CutContexts are
// interchangeable with the host codec's.
class DeviceCodec : public Codec {
 public:
  // Allocates `bytes` bytes, aligned to kAlignment. Throws RunError "out-of-memory". Any thread;
  // any thread may release the memory.
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) const = 0;
  // Returns when the copy is complete.
  virtual void copyToHost(const std::byte* from_dev, std::size_t bytes, std::byte* to) const = 0;
};

class Gpu;

// What a GPU implementation is made of: the host codec, its spec, and the GPU, which is borrowed.
struct GpuCodecRequest {
  std::shared_ptr<const Codec> codec;
  CodecSpec spec;
  Gpu& gpu;
};

}  // namespace cleave
