// Codecs whose tensors lie in the memory of a device that computes, such as a GPU. Payloads lie in
// the host's, and are those of the codec whose spec they have: a peer cannot tell.
#pragma once

#include <cstddef>
#include <memory>

#include "common/codec/codec.h"

namespace cleave {

// encode() takes views of device memory that is not being written to any more; decode() writes to
// tensors that allocate() made. Both return when the device is done. CutContexts are those of the
// codec itself.
class DeviceCodec : public Codec {
 public:
  // Of `bytes` bytes, on a boundary of kAlignment. Throws RunError "out-of-memory". Any thread, as
  // may drop it.
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) const = 0;
  // Returns when it is done.
  virtual void copyToHost(const std::byte* from_dev, std::size_t bytes, std::byte* to) const = 0;
};

}  // namespace cleave
