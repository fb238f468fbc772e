// Tensors and blobs on their way in, a stream each: held to what was agreed before memory is taken
// for them, and put together from their segments. io thread only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/core/buffer.h"
#include "common/core/clock.h"
#include "common/net/frame.h"
#include "common/pipeline/messages.h"
#include "common/pipeline/transfer_order.h"

namespace cleave {

struct TensorLinkOptions;

inline constexpr std::string_view kBlobCodec = "none";

struct IncomingTensor {
  TensorMessage message;  // no payload yet
  TensorSpec spec;        // of no blob
  std::string codec;
  Buffer buffer;             // for all of its encoding
  std::size_t received = 0;  // bytes of it
  std::uint64_t wireBytes = 0;
  double encodeSeconds = 0;
  double queueSeconds = 0;
  SteadyTime opened;
  SteadyTime segmentBegan;  // of the frame that is read now
  std::string sha256;       // of a blob, once its last segment has come
};

class IncomingTensors {
 public:
  // `options` and `order` are borrowed.
  IncomingTensors(const TensorLinkOptions& options, TransferOrder& order,
                  std::shared_ptr<BufferPool> pool);

  // A Tensor frame, of which the metadata is here. Throws ProtocolError for what is not as agreed,
  // and "memory-exceeded".
  void open(const FrameHeader& header, std::span<const std::byte> metadata);
  // A Segment frame, the same.
  void continueStream(const FrameHeader& header, std::span<const std::byte> metadata);
  // Where the payload of the frame that open() or continueStream() has taken belongs.
  std::span<std::byte> place(const FrameHeader& header);
  // A blob that was asked for may come, once.
  void expectBlob(Flow flow) { expectedBlob_ = flow; }
  // That payload has come. Returns the tensor if it is complete, and forgets it.
  std::optional<IncomingTensor> received(const FrameHeader& header);

 private:
  void checkDirection(const Key& key) const;
  void checkTensor(const IncomingTensor& tensor, std::uint64_t encodedBytes) const;
  void checkBlob(const IncomingTensor& tensor, std::uint64_t encodedBytes) const;
  std::uint64_t mostBlobBytes(Flow flow) const;

  const TensorLinkOptions& options_;
  TransferOrder& order_;
  const std::shared_ptr<BufferPool> pool_;
  std::map<std::uint64_t, IncomingTensor> streams_;
  std::uint64_t lastStream_ = 0;
  std::optional<Flow> expectedBlob_;
};

}  // namespace cleave
