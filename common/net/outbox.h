// What waits to be sent on one connection: control frames first, in order; then tensors by
// priority, cut into segments, so that an urgent tensor overtakes one that is under way. Pure data
// structure, io thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/core/clock.h"
#include "common/net/frame.h"

namespace cleave {

// One encoded tensor on its way out.
struct OutgoingTensor {
  std::span<const std::byte> bytes;   // the encoded tensor; may be empty
  std::shared_ptr<const void> owner;  // keeps `bytes` alive until the last segment is written
  // Not 0: the stream has so many bytes, and each of its segments is the beginning of `bytes`,
  // which has at least kMaxSegmentBytes: a stream of any length costs no memory of its own.
  std::uint64_t repeated = 0;
  int priority = 0;  // lower goes first; equal: first come, first served
  // It may take what the link has to spare, and must not make the others wait. Goes last.
  bool isBackground = false;
  SteadyTime queuedAt;
  // The Tensor metadata, asked for when the first segment is handed to the socket: queueSeconds is
  // known then.
  std::function<std::string(double queueSeconds)> openMetadata;
  // SHA-256 for the last segment's metadata; empty: none. A stream with one has at least two
  // frames.
  std::string sha256;
  // Called when a segment was written, with the time when it was chosen and that when the kernel
  // had taken it. Empty: nobody asks.
  std::function<void(SteadyTime chosen, SteadyTime written)> segmentWritten;
  // Called when the last segment was written, with the stream's bytes on the wire, headers and
  // metadata included.
  std::function<void(std::uint64_t wireBytes)> written;
};

struct OutgoingFrame {
  FrameKind kind = FrameKind::hello;
  std::uint64_t stream = 0;
  std::string metadata;
  std::span<const std::byte> payload;
  std::shared_ptr<const void> owner;
  bool isBackground = false;
  // To be called once the frame is written; may be empty.
  std::function<void(SteadyTime chosen, SteadyTime written)> segmentWritten;
  std::function<void()> written;
};

class Outbox {
 public:
  void pushControl(FrameKind kind, std::string metadata);
  void pushTensor(OutgoingTensor tensor);
  // The next frame to write; a tensor's payload is at most segmentBytes, and one of a background
  // tensor at most backgroundBytes (0: none of these now).
  std::optional<OutgoingFrame> next(std::size_t segmentBytes, std::size_t backgroundBytes);
  // Whether next() has a frame.
  bool hasNext(std::size_t backgroundBytes) const {
    return !control_.empty() ||
           (!streams_.empty() && (backgroundBytes > 0 || !streams_.front()->tensor.isBackground));
  }
  bool empty() const { return control_.empty() && streams_.empty(); }
  bool hasTensors() const { return !streams_.empty(); }
  // Control frames and tensors that wait.
  std::size_t size() const { return control_.size() + streams_.size(); }

 private:
  struct Stream {
    OutgoingTensor tensor;
    std::uint64_t id = 0;  // given when it opens, so that numbers count up on the wire; 0: not yet
    std::uint64_t offset = 0;
    std::uint64_t wireBytes = 0;
  };
  std::deque<OutgoingFrame> control_;
  std::deque<std::shared_ptr<Stream>> streams_;  // background last; by priority, then by arrival
  std::uint64_t nextStream_ = 1;
};

}  // namespace cleave
