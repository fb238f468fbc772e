#include "common/link/tensor_sender.h"

#include <utility>
#include <vector>

#include "common/link/incoming_tensors.h"
#include "common/link/wire_messages.h"

namespace cleave {

TensorSender::TensorSender(std::shared_ptr<const TensorLinkOptions> options,
                           std::shared_ptr<ConnectionSlot> slot,
                           std::shared_ptr<CodecTasks> codecTasks,
                           std::shared_ptr<TransferOrder> order, std::shared_ptr<TransferLog> log)
    : options_(std::move(options)),
      slot_(std::move(slot)),
      codecTasks_(std::move(codecTasks)),
      order_(std::move(order)),
      log_(std::move(log)) {}

// ---- Encoding ----

// A stage's output is charged to the session until it has been sent or encoded.
MemoryCharge TensorSender::chargeFor(const TensorView& view) const {
  const bool isHere = view.place != MemoryPlace::device;
  return MemoryCharge(options_->account, isHere ? BufferPool::capacityFor(view.spec.bytes()) : 0);
}

void TensorSender::sendTensor(TensorMessage&& message) {
  const TensorView view = message.payload.view();
  MemoryCharge charge = chargeFor(view);
  if (!options_->codec(message.flow).isIdentity()) {
    codecTasks_->post([self = shared_from_this(), message = std::move(message),
                       charge = std::move(charge)](TensorCodecs& codecs) mutable {
      const MemoryCharge untilEncoded = std::move(charge);
      self->encode(codecs, std::move(message));
    });
    return;
  }
  auto encoding = std::make_shared<Encoding>();
  encoding->charge = std::move(charge);
  encoding->spec = view.spec;
  encoding->bytes = {view.data, view.spec.bytes()};
  encoding->owner = message.payload.owner();
  encoding->codec = options_->codec(message.flow).spec();
  encoding->message = std::move(message);
  queueOnIo(std::move(encoding));
}

void TensorSender::encode(TensorCodecs& codecs, TensorMessage&& message) {
  auto [bytes, begin, end, snrDb] = codecs.encode(message.key(), message.payload.view());
  options_->recordActivity(TraceActivity::encode, message.key(), begin, end);
  auto encoding = std::make_shared<Encoding>();
  encoding->encodeSeconds = secondsBetween(begin, end);
  encoding->snrDb = snrDb;
  encoding->spec = message.payload.view().spec;
  encoding->codec = options_->codec(message.flow).spec();
  message.payload = Payload();
  encoding->message = std::move(message);
  encoding->bytes = bytes.span();
  encoding->owner = std::make_shared<const Buffer>(std::move(bytes));
  log_->encoded(encoding->encodeSeconds);
  queueOnIo(std::move(encoding));
}

void TensorSender::sendBlob(Blob&& blob) {
  auto encoding = std::make_shared<Encoding>();
  encoding->charge = MemoryCharge(options_->account, blob.bytes.size());
  encoding->message.flow = blob.flow;
  encoding->bytes = blob.bytes;
  encoding->owner = std::move(blob.owner);
  encoding->codec = kBlobCodec;
  codecTasks_->digest(encoding->bytes, [self = shared_from_this(), encoding](std::string sha256) {
    encoding->sha256 = std::move(sha256);
    self->queueOnIo(encoding);
  });
}

// ---- Answers to a Fetch ----

// One at a time: each answer holds a copy of the body until it is acknowledged.
bool TensorSender::answer(const Fetch& fetch) {
  if (std::exchange(blobUnderWay_, true)) {
    throw ProtocolError("too-many-in-flight", "a Fetch arrived before the last one was answered");
  }
  if (fetch.flow != kTraceBody) return false;
  sendTrace();
  return true;
}

void TensorSender::sendTrace() {
  if (!options_->trace) {
    throw ProtocolError("unexpected-message",
                        "Fetch of trace/body arrived, but the run spec requests no trace");
  }
  const auto bytes =
      std::make_shared<const std::vector<std::byte>>(toBytes(options_->trace->trace()));
  sendBlob(Blob{kTraceBody, {bytes->data(), bytes->size()}, bytes});
}

// ---- Queueing ----

void TensorSender::queueOnIo(std::shared_ptr<Encoding> encoding) {
  slot_->onIo(
      [self = shared_from_this(), encoding = std::move(encoding)] { self->queue(encoding); });
}

void TensorSender::queue(const std::shared_ptr<Encoding>& encoding) {
  const Key key = encoding->message.key();
  const bool blob = isBlob(key.flow);
  if (!blob) order_->queued(key);
  TransferRecord record;
  record.key = key;
  record.codec = encoding->codec;
  record.spec = encoding->spec;
  record.rawBytes = blob ? encoding->bytes.size() : encoding->spec.bytes();
  record.encodeSeconds = encoding->encodeSeconds;
  record.snrDb = encoding->snrDb;
  log_->queued(std::move(record));
  slot_->sendTensor(outgoing(encoding));
}

OutgoingTensor TensorSender::outgoing(const std::shared_ptr<Encoding>& encoding) {
  const Key key = encoding->message.key();
  const bool blob = isBlob(key.flow);
  OutgoingTensor tensor;
  tensor.bytes = encoding->bytes;
  tensor.owner = encoding->owner;
  tensor.priority = blob ? 0 : options_->priority(key.flow, options_->place);
  // Blobs that the client fetches must not delay the step. The client's own initial weights can: no
  // step runs before they arrive.
  tensor.isBackground = blob && options_->role == Role::server;
  tensor.queuedAt = now();
  tensor.sha256 = encoding->sha256;
  // The outbox calls these from within Connection::run(), during which this object exists.
  tensor.openMetadata = [this, encoding, key, queuedAt = tensor.queuedAt](double queueSeconds) {
    log_->begun(key, queueSeconds);
    options_->recordActivity(TraceActivity::queue, key, queuedAt, now());
    return openMetadata(*encoding, queueSeconds);
  };
  if (options_->trace && options_->trace->wants(key)) {
    tensor.segmentWritten = [this, key](SteadyTime chosen, SteadyTime written) {
      options_->recordActivity(TraceActivity::send, key, chosen, written);
    };
  }
  tensor.written = [this, key](std::uint64_t wireBytes) {
    if (log_->written(key, wireBytes)) settle(key);
  };
  return tensor;
}

std::string TensorSender::openMetadata(const Encoding& encoding, double queueSeconds) {
  const TensorMessage& message = encoding.message;
  wire::Tensor proto;
  toWire(message.key(), *proto.mutable_key());
  if (!isBlob(message.flow)) toWire(encoding.spec, *proto.mutable_spec());
  proto.set_codec(encoding.codec);
  proto.set_encoded_bytes(encoding.bytes.size());
  proto.set_micro_batches(message.at.microBatches);
  proto.set_samples(message.at.samples);
  proto.set_weight_version(message.weightVersion);
  proto.set_encode_seconds(encoding.encodeSeconds);
  proto.set_queue_seconds(queueSeconds);
  return proto.SerializeAsString();
}

// ---- Acknowledgements ----

void TensorSender::acknowledged(const ReceivedReport& report) {
  if (log_->acknowledged(report)) settle(report.key);
}

// The tensor has been written and acknowledged.
void TensorSender::settle(const Key& key) {
  if (isBlob(key.flow)) {
    blobUnderWay_ = false;
  } else {
    order_->settled(key);
  }
  log_->settle(key, slot_->linkInfo());
}

}  // namespace cleave
