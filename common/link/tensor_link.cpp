#include "common/link/tensor_link.h"

#include <string>
#include <utility>
#include <variant>

#include "common/link/wire_messages.h"

namespace cleave {

TensorLink::TensorLink(TensorLinkOptions options, std::shared_ptr<Connection> connection,
                       std::shared_ptr<BufferPool> pool, boost::asio::any_io_executor io,
                       std::function<void(Message)> deliver,
                       std::function<void(const TransferRecord&)> record)
    : role_(options.role),
      deliver_(std::move(deliver)),
      slot_(std::make_shared<ConnectionSlot>(std::move(connection), std::move(io))),
      log_(std::make_shared<TransferLog>(role_, options.inFlight, std::move(record))) {
  if (options.account) pool = pool->chargedTo(options.account);
  const auto agreed = std::make_shared<const TensorLinkOptions>(std::move(options));
  const auto order =
      std::make_shared<TransferOrder>(role_, agreed->place, agreed->inFlight, agreed->account);
  codecTasks_ = std::make_shared<CodecTasks>(*agreed, pool, slot_);
  sender_ = std::make_shared<TensorSender>(agreed, slot_, codecTasks_, order, log_);
  receiver_ =
      std::make_shared<TensorReceiver>(agreed, pool, slot_, codecTasks_, order, log_, deliver_);
}

void TensorLink::send(Message message) {
  if (auto* tensor = std::get_if<TensorMessage>(&message)) {
    sender_->sendTensor(std::move(*tensor));
  } else if (auto* blob = std::get_if<Blob>(&message)) {
    sender_->sendBlob(std::move(*blob));
  } else if (auto* done = std::get_if<BodyDone>(&message)) {
    done->codecSeconds = log_->takeCodecSeconds();
    done->sendRate = slot_->sendRate();
    done->receiveRate = slot_->receiveRate();
    slot_->sendControl(FrameKind::bodyDone, toWire(*done));
  } else if (const auto* decision = std::get_if<StepDecision>(&message)) {
    slot_->sendControl(FrameKind::step, toWire(*decision));
  } else if (const auto* ok = std::get_if<StepOk>(&message)) {
    slot_->sendControl(FrameKind::stepOk, toWire(*ok));
  } else if (const auto* fetch = std::get_if<Fetch>(&message)) {
    receiver_->expectBlob(fetch->flow);
    slot_->sendControl(FrameKind::fetch, toWire(*fetch));
  }
}

void TensorLink::receivedFrame(const FrameHeader& header, std::span<const std::byte> metadata,
                               std::span<const std::byte>) {
  const bool atServer = role_ == Role::server;
  switch (header.kind) {
    case FrameKind::tensor:
    case FrameKind::segment:
      return receiver_->received(header);
    case FrameKind::received:
      return sender_->acknowledged(receivedFromWire(metadata));
    case FrameKind::bodyDone:
      if (!atServer) return deliver_(bodyDoneFromWire(metadata));
      break;
    case FrameKind::stepOk:
      if (!atServer) return deliver_(stepOkFromWire(metadata));
      break;
    case FrameKind::step:
      if (atServer) return deliver_(decisionFromWire(metadata));
      break;
    case FrameKind::fetch:
      if (!atServer) break;
      if (const Fetch fetch = fetchFromWire(metadata); !sender_->answer(fetch)) deliver_(fetch);
      return;
    default:
      break;
  }
  throw ProtocolError("unexpected-message", std::string(frameKindName(header.kind)) +
                                                " is sent only in the other direction");
}

}  // namespace cleave
