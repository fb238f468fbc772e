// Assembles incoming tensors and blobs from their segments; each is one stream. They are checked
// against the negotiated parameters before memory is allocated for them. io thread only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/core/clock.h"
#include "common/engine/messages.h"
#include "common/link/arrived.h"
#include "common/link/tensor_link_options.h"
#include "common/link/transfer_order.h"
#include "common/net/frames/frame.h"
#include "common/resources/buffer.h"

namespace cleave {

inline constexpr std::string_view kBlobCodec = "none";

struct IncomingTensor {
  TensorMessage message;  // its payload is not set yet
  TensorSpec spec;        // not used for blobs
  std::string codec;
  CodecLevel level = CodecLevel::own;
  Buffer buffer;             // holds the complete encoding
  std::size_t received = 0;  // bytes of the encoding received so far
  std::uint64_t wireBytes = 0;
  double encodeSeconds = 0;
  double queueSeconds = 0;
  SteadyTime opened;
  SteadyTime segmentBegan;  // when the frame that is being read began
  std::string sha256;       // blobs only, set with the last segment
};

class IncomingTensors {
 public:
  // `options` and `order` are borrowed.
  IncomingTensors(const TensorLinkOptions& options, TransferOrder& order,
                  std::shared_ptr<BufferPool> pool);

  // Handles the metadata of a Tensor frame. Throws ProtocolError if it does not match what was
  // negotiated, or "memory-exceeded" if the session's memory does not suffice.
  void open(const FrameHeader& header, std::span<const std::byte> metadata);
  // Handles the metadata of a Segment frame, like open().
  void continueStream(const FrameHeader& header, std::span<const std::byte> metadata);
  // The memory for the payload of the frame that was just passed to open() or continueStream().
  std::span<std::byte> place(const FrameHeader& header);
  // Allows one blob of this flow. Call when it is requested.
  void expectBlob(Flow flow) { expectedBlobs_[flow] = true; }
  // Call when the payload of this frame has arrived. If the tensor is complete, removes and returns
  // it.
  std::optional<IncomingTensor> received(const FrameHeader& header);

  // Call when the connection is gone. The next connection continues incomplete tensors.
  void detach();
  // Returns the totals of all connections so far. Call after detach().
  FlowMap<Arrived::OfFlow> arrived() const;

 private:
  void continueTensor(const FrameHeader& header, const Key& key, std::uint64_t offset,
                      std::uint64_t encodedBytes);
  void checkDirection(const Key& key) const;
  CodecLevel levelOf(const Key& key, std::uint32_t level) const;
  Division checkedDivision(const TensorMessage& message) const;
  void checkTensor(const IncomingTensor& tensor, std::uint64_t encodedBytes) const;
  void checkBlob(const IncomingTensor& tensor, std::uint64_t encodedBytes) const;
  std::uint64_t maxBlobBytes(Flow flow) const;

  const TensorLinkOptions& options_;
  TransferOrder& order_;
  const std::shared_ptr<BufferPool> pool_;
  std::map<std::uint64_t, IncomingTensor> streams_;  // at most one per flow
  std::map<Flow, IncomingTensor> interrupted_;       // incomplete tensors of an earlier connection
  FlowMap<std::uint64_t> complete_;                  // number of complete tensors
  std::uint64_t lastStream_ = 0;
  FlowMap<bool> expectedBlobs_;
};

}  // namespace cleave
