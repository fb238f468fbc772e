#include "common/link/tensor_receiver.h"

#include <cassert>
#include <optional>
#include <utility>

#include "common/link/wire_messages.h"

namespace cleave {

TensorReceiver::TensorReceiver(std::shared_ptr<const TensorLinkOptions> options,
                               std::shared_ptr<BufferPool> pool,
                               std::shared_ptr<ConnectionSlot> slot,
                               std::shared_ptr<CodecTasks> codecTasks,
                               std::shared_ptr<TransferOrder> order,
                               std::shared_ptr<TransferLog> log,
                               std::function<void(Message)> deliver)
    : options_(std::move(options)),
      slot_(std::move(slot)),
      codecTasks_(std::move(codecTasks)),
      order_(std::move(order)),
      log_(std::move(log)),
      deliver_(std::move(deliver)),
      incoming_(*options_, *order_, std::move(pool)) {}

// ---- Frames ----

void TensorReceiver::expectBlob(Flow flow) {
  slot_->onIo([self = shared_from_this(), flow] { self->incoming_.expectBlob(flow); });
}

std::span<std::byte> TensorReceiver::place(const FrameHeader& header,
                                           std::span<const std::byte> metadata) {
  if (header.kind == FrameKind::segment) {
    incoming_.continueStream(header, metadata);
  } else {
    incoming_.open(header, metadata);
  }
  return incoming_.place(header);
}

void TensorReceiver::received(const FrameHeader& header) {
  slot_->countProgress(header.payloadBytes);
  if (std::optional<IncomingTensor> tensor = incoming_.received(header)) {
    finish(std::move(*tensor));
  }
}

// ---- Decoding ----

void TensorReceiver::finish(IncomingTensor&& tensor) {
  const double wireSeconds = secondsSince(tensor.opened);
  auto shared = std::make_shared<IncomingTensor>(std::move(tensor));
  if (isBlob(shared->message.flow)) {
    codecTasks_->digest(shared->buffer.span(), [self = shared_from_this(), shared,
                                                wireSeconds](const std::string& sha256) {
      self->verifyBlob(std::move(*shared), sha256, wireSeconds);
    });
  } else if (isDecodedHere(shared->message.flow)) {
    codecTasks_->post([self = shared_from_this(), shared, wireSeconds](TensorCodecs& codecs) {
      self->decode(codecs, std::move(*shared), wireSeconds);
    });
  } else {
    if (options_->passedOn.get(shared->message.flow)) {
      shared->message.encodedBytes = shared->buffer.span().size();
    }
    const TensorView view{shared->buffer.data(), shared->spec};
    if (!shared->message.encodedBytes) {
      options_->observe(shared->message.key(), shared->level, view);
    }
    auto owner = std::make_shared<const Buffer>(std::move(shared->buffer));
    deliverTensor(std::move(*shared), Payload(view, std::move(owner)), wireSeconds, 0);
  }
}

bool TensorReceiver::isDecodedHere(Flow flow) const {
  return !options_->codec(flow).isIdentity() && !options_->passedOn.get(flow);
}

void TensorReceiver::decode(TensorCodecs& codecs, IncomingTensor&& tensor, double wireSeconds) {
  const Key key = tensor.message.key();
  auto [payload, begin, end] = codecs.decode(key, tensor.buffer.span(), tensor.spec, tensor.level);
  options_->recordActivity(TraceActivity::decode, key, begin, end);
  deliverTensor(std::move(tensor), std::move(payload), wireSeconds, secondsBetween(begin, end));
}

void TensorReceiver::verifyBlob(IncomingTensor&& tensor, const std::string& sha256,
                                double wireSeconds) {
  if (sha256 != tensor.sha256) {
    throw ProtocolError("bad-digest", std::string(flowName(tensor.message.flow)) +
                                          " does not have the SHA-256 that was sent with it");
  }
  const bool isInitial = options_->role == Role::server && tensor.message.flow == kWeightsBody;
  if (isInitial && !options_->weightsSha256.empty() && sha256 != options_->weightsSha256) {
    throw ProtocolError("bad-digest",
                        "weights/body does not have the SHA-256 that the Hello announced");
  }
  if (tensor.message.flow == kTraceBody) {
    traceFromServer(tensor.buffer.span(), options_->trace->window(), options_->microBatches,
                    options_->place);
  }
  acknowledge(tensor, wireSeconds, 0);
  Blob blob;
  blob.flow = tensor.message.flow;
  auto buffer = std::make_shared<const Buffer>(std::move(tensor.buffer));
  blob.bytes = buffer->span();
  blob.owner = std::move(buffer);
  deliver_(std::move(blob));
}

// ---- Delivery ----

void TensorReceiver::deliverTensor(IncomingTensor&& tensor, Payload payload, double wireSeconds,
                                   double decodeSeconds) {
  assert(payload.view().spec == tensor.spec);
  acknowledge(tensor, wireSeconds, decodeSeconds);
  tensor.message.payload = std::move(payload);
  deliver_(std::move(tensor.message));
}

void TensorReceiver::acknowledge(const IncomingTensor& tensor, double wireSeconds,
                                 double decodeSeconds) {
  TransferRecord record;
  record.key = tensor.message.key();
  record.codec = tensor.codec;
  record.spec = tensor.spec;
  record.rawBytes = isBlob(record.key.flow) ? tensor.received : tensor.spec.bytes();
  record.wireBytes = tensor.wireBytes;
  record.encodeSeconds = tensor.encodeSeconds;
  record.queueSeconds = tensor.queueSeconds;
  record.wireSeconds = wireSeconds;
  record.decodeSeconds = decodeSeconds;
  slot_->sendControl(
      FrameKind::received,
      toWire(ReceivedReport{record.key, wireSeconds, decodeSeconds, slot_->controlReceived()}));
  slot_->onIo([self = shared_from_this(), record = std::move(record)]() mutable {
    record.link = self->slot_->linkInfo();
    self->log_->received(record);
  });
}

}  // namespace cleave
