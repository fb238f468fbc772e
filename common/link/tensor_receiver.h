// The receiving half of a tensor link: places the payloads of incoming tensors and blobs in memory,
// checks and decodes them, acknowledges them, and delivers them.
//
// Tensors of the codec `none` bypass the codec queue and are never copied: the socket writes
// directly into the memory on which the stage computes.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "common/engine/messages.h"
#include "common/link/codec_tasks.h"
#include "common/link/connection_slot.h"
#include "common/link/incoming_tensors.h"
#include "common/link/tensor_link_options.h"
#include "common/link/transfer_log.h"
#include "common/link/transfer_order.h"
#include "common/resources/buffer.h"

namespace cleave {

class TensorReceiver : public std::enable_shared_from_this<TensorReceiver> {
 public:
  // `deliver` is called on the io thread or in the codec queue.
  TensorReceiver(std::shared_ptr<const TensorLinkOptions> options, std::shared_ptr<BufferPool> pool,
                 std::shared_ptr<ConnectionSlot> slot, std::shared_ptr<CodecTasks> codecTasks,
                 std::shared_ptr<TransferOrder> order, std::shared_ptr<TransferLog> log,
                 std::function<void(Message)> deliver);

  // Any thread. Allows one blob of this flow. Call before requesting it.
  void expectBlob(Flow flow);

  // io thread. Handle the frames of a tensor or blob; see FrameSink. They throw the errors of
  // IncomingTensors.
  std::span<std::byte> place(const FrameHeader& header, std::span<const std::byte> metadata);
  void received(const FrameHeader& header);
  // io thread. See IncomingTensors.
  void detach() { incoming_.detach(); }
  FlowMap<Arrived::OfFlow> arrived() const { return incoming_.arrived(); }

 private:
  // io thread
  void finish(IncomingTensor&& tensor);
  bool isDecodedHere(Flow flow) const;
  // codec queue
  void decode(TensorCodecs& codecs, IncomingTensor&& tensor, double wireSeconds);
  void verifyBlob(IncomingTensor&& tensor, const std::string& sha256, double wireSeconds);
  // io thread or codec queue. Call when a tensor is complete. Acknowledges it before the engine
  // receives it, so that the acknowledgement precedes everything that the engine then sends.
  void deliverTensor(IncomingTensor&& tensor, Payload payload, double wireSeconds,
                     double decodeSeconds);
  void acknowledge(const IncomingTensor& tensor, double wireSeconds, double decodeSeconds);

  const std::shared_ptr<const TensorLinkOptions> options_;
  const std::shared_ptr<ConnectionSlot> slot_;
  const std::shared_ptr<CodecTasks> codecTasks_;
  const std::shared_ptr<TransferOrder> order_;
  const std::shared_ptr<TransferLog> log_;
  const std::function<void(Message)> deliver_;
  IncomingTensors incoming_;  // io thread
};

}  // namespace cleave
