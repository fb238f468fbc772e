// The tensor link: joins codecs and a connection into the interface that an engine uses.
//
// clang-format off
//   device thread   send(), commit(): post to the others, never wait
//   codec queue     encode, decode, digests
//   io thread       frames, streams, credits
//
//   TensorSender     encode, queue           TensorReceiver   place, decode, deliver
//   TransferOrder    credits                 TransferLog      records, totals
//   CodecTasks       the codec queue         ConnectionSlot   the connection
// clang-format on
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <memory>
#include <span>

#include "common/core/buffer.h"
#include "common/engine/messages.h"
#include "common/link/tensor_link_options.h"
#include "common/link/tensor_receiver.h"
#include "common/link/tensor_sender.h"
#include "common/link/transfers.h"
#include "common/net/connection.h"

namespace cleave {

class TensorLink : public EngineLink, public FrameSink {
 public:
  // `deliver` is called on the io thread or in the codec queue, `record` on the io thread. `record`
  // must not block. Both may be called even after the link is destroyed, until what it has posted
  // has run.
  TensorLink(TensorLinkOptions options, std::shared_ptr<Connection> connection,
             std::shared_ptr<BufferPool> pool, boost::asio::any_io_executor io,
             std::function<void(Message)> deliver,
             std::function<void(const TransferRecord&)> record);

  void send(Message message) override;
  void commit() override {
    codecTasks_->post([](TensorCodecs& codecs) { codecs.commit(); });
  }

  std::span<std::byte> placePayload(const FrameHeader& header,
                                    std::span<const std::byte> metadata) override {
    return receiver_->place(header, metadata);
  }
  void receivedFrame(const FrameHeader& header, std::span<const std::byte> metadata,
                     std::span<const std::byte> payload) override;

  // Any thread.
  LinkTotals totals() const {
    return log_->totals(slot_->bytes(), slot_->peakSent(), slot_->peakReceived());
  }
  // Any thread: whether tensors are being encoded or decoded here, or waiting for it.
  bool hasCodecWork() const { return codecTasks_->any(); }
  // io thread, after the connection has ended: records the tensors that were sent but not
  // acknowledged.
  void recordUnacknowledged() { log_->recordUnacknowledged(); }

 private:
  const Role role_;
  const std::function<void(Message)> deliver_;
  const std::shared_ptr<ConnectionSlot> slot_;
  const std::shared_ptr<TransferLog> log_;
  std::shared_ptr<CodecTasks> codecTasks_;
  std::shared_ptr<TensorSender> sender_;
  std::shared_ptr<TensorReceiver> receiver_;
};

}  // namespace cleave
