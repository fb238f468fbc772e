// Gets the tensors of steps as they cross a link.
#pragma once

#include <string>

#include "common/codec/tensor.h"
#include "common/topology/codec_level.h"
#include "common/topology/key.h"

namespace cleave {

// Any thread.
class TrafficObserver {
 public:
  virtual ~TrafficObserver() = default;
  // Whether crossed() needs this tensor. Its sender then decodes what it has encoded.
  virtual bool wants(const Key& key) const = 0;
  // Called with each wanted tensor that this side sends or receives, in host memory, as its
  // receiver decodes it, before it is queued or delivered: in the codec queue, or for the codec
  // `none` on the sending thread and the io thread. `codec`: its spec. The tensor is borrowed. Not
  // called for tensors that the client passes on from one server to another.
  virtual void crossed(const Key& key, const std::string& codec, CodecLevel level,
                       const TensorView& tensor) = 0;
};

}  // namespace cleave
