// Frames waiting to be sent on one connection: control frames first, in order, then tensors by
// priority. Tensors are split into segments, so that an urgent tensor can overtake one in progress.
// Pure data structure, io thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "common/core/clock.h"
#include "common/net/frames/frame.h"

namespace cleave {

// One encoded tensor to be sent.
struct OutgoingTensor {
  std::span<const std::byte> bytes;   // the encoded tensor; may be empty
  std::shared_ptr<const void> owner;  // keeps `bytes` alive until the last segment is written
  // If not 0, the stream's length: each segment is a prefix of `bytes`, which must have at least
  // kMaxSegmentBytes. So a long stream needs no additional memory.
  std::uint64_t repeated = 0;
  std::uint64_t begin = 0;  // the first byte to send: the peer already has the bytes before it
  int priority = 0;         // lower values are sent first; equal ones in order of arrival
  // A background tensor uses only spare bandwidth and must not delay other tensors. Sent last.
  bool isBackground = false;
  SteadyTime queuedAt;
  // Returns the Tensor metadata. Called when the first segment is passed to the socket, because
  // queueSeconds is known only then.
  std::function<std::string(double queueSeconds)> openMetadata;
  // SHA-256 for the last segment's metadata; empty: none. A stream with a digest has at least two
  // frames.
  std::string sha256;
  // Called after a segment was written, with the position after its last byte, the time when it was
  // chosen, and the time when the kernel had accepted it. May be empty.
  std::function<void(std::uint64_t end, SteadyTime chosen, SteadyTime written)> segmentWritten;
  // Bytes on the wire so far, including headers and metadata, over all connections. Null: not
  // counted.
  std::shared_ptr<std::uint64_t> wireBytes;
  // Called after the last segment was written.
  std::function<void()> written;
};

struct OutgoingFrame {
  FrameKind kind = FrameKind::hello;
  std::uint64_t stream = 0;
  std::string metadata;
  std::span<const std::byte> payload;
  std::shared_ptr<const void> owner;
  bool isBackground = false;
  // Called once the frame is written; may be empty.
  std::function<void(SteadyTime chosen, SteadyTime written)> segmentWritten;
  std::function<void()> written;
};

class Outbox {
 public:
  void pushControl(FrameKind kind, std::string metadata);
  void pushTensor(OutgoingTensor tensor);
  // The next frame to write. A tensor's payload has at most segmentBytes, that of a background
  // tensor also at most backgroundBytes (0: no background tensor now).
  std::optional<OutgoingFrame> next(std::size_t segmentBytes, std::size_t backgroundBytes);
  // Whether next() has a frame.
  bool hasNext(std::size_t backgroundBytes) const {
    return !control_.empty() ||
           (!streams_.empty() && (backgroundBytes > 0 || !streams_.front()->tensor.isBackground));
  }
  bool empty() const { return control_.empty() && streams_.empty(); }
  bool hasTensors() const { return !streams_.empty(); }
  // Control frames and tensors waiting.
  std::size_t size() const { return control_.size() + streams_.size(); }

 private:
  struct Stream {
    OutgoingTensor tensor;
    std::uint64_t id = 0;  // assigned with the stream's first frame, so that ids ascend on the
                           // wire; 0: not assigned
    std::uint64_t offset = 0;
  };
  std::deque<OutgoingFrame> control_;
  std::deque<std::shared_ptr<Stream>> streams_;  // background last; by priority, then by arrival
  std::uint64_t nextStream_ = 1;
};

}  // namespace cleave
