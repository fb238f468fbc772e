#include "common/link/tensor_sender.h"

#include <algorithm>
#include <cassert>
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
  const CodecLevel level = options_->levels->of(message.key());
  if (!message.encodedBytes && !options_->codec(message.flow).isIdentity()) {
    codecTasks_->post([self = shared_from_this(), message = std::move(message),
                       charge = std::move(charge), level](TensorCodecs& codecs) mutable {
      const MemoryCharge untilEncoded = std::move(charge);
      self->encode(codecs, std::move(message), level);
    });
    return;
  }
  if (!message.encodedBytes) options_->observe(message.key(), level, view);
  auto encoding = std::make_shared<Encoding>();
  encoding->charge = std::move(charge);
  encoding->spec = view.spec;
  encoding->bytes = {view.data, message.encodedBytes.value_or(view.spec.bytes())};
  encoding->owner = message.payload.owner();
  encoding->codec = options_->codec(message.flow, level).spec();
  encoding->level = level;
  encoding->message = std::move(message);
  queueOnIo(std::move(encoding));
}

void TensorSender::encode(TensorCodecs& codecs, TensorMessage&& message, CodecLevel level) {
  auto [bytes, begin, end, snrDb] = codecs.encode(message.key(), message.payload.view(), level);
  options_->recordActivity(TraceActivity::encode, message.key(), begin, end);
  auto encoding = std::make_shared<Encoding>();
  encoding->encodeSeconds = secondsBetween(begin, end);
  encoding->snrDb = snrDb;
  if (snrDb && options_->watched && options_->isWatched(message.key())) {
    options_->watched(message.key(), *snrDb);
  }
  encoding->spec = message.payload.view().spec;
  encoding->codec = options_->codec(message.flow, level).spec();
  encoding->level = level;
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
  encoding->isAwaited = blob.isAwaited;
  encoding->codec = kBlobCodec;
  codecTasks_->digest(encoding->bytes, [self = shared_from_this(), encoding](std::string sha256) {
    encoding->sha256 = std::move(sha256);
    self->queueOnIo(encoding);
  });
}

// ---- Answers to a Fetch ----

// Allows one answer at a time, because each holds a copy of the body until it is acknowledged.
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
  if (!blob) {
    order_->queued(key, [weak = weak_from_this(), key] {
      const auto self = weak.lock();
      return !self || self->release(key);
    });
  }
  if (log_->isFull()) settleReleased();
  TransferRecord record;
  record.key = key;
  record.codec = encoding->codec;
  record.spec = encoding->spec;
  record.rawBytes = blob ? encoding->bytes.size() : encoding->spec.bytes();
  record.encodeSeconds = encoding->encodeSeconds;
  record.snrDb = encoding->snrDb;
  log_->queued(std::move(record));
  unsettled_.push_back(encoding);
  send(encoding, 0);
}

void TensorSender::send(const std::shared_ptr<Encoding>& encoding, std::uint64_t begin) {
  ++encoding->connections;
  slot_->sendTensor(outgoing(encoding, begin));
}

OutgoingTensor TensorSender::outgoing(const std::shared_ptr<Encoding>& encoding,
                                      std::uint64_t begin) {
  const Key key = encoding->message.key();
  const bool blob = isBlob(key.flow);
  OutgoingTensor tensor;
  tensor.bytes = encoding->bytes;
  tensor.begin = begin;
  tensor.wireBytes = encoding->wireBytes;
  tensor.owner = encoding->owner;
  tensor.priority = blob ? 0 : options_->priority(key.flow, options_->place);
  tensor.isBackground = blob && !encoding->isAwaited;
  tensor.queuedAt = now();
  tensor.sha256 = encoding->sha256;
  // The outbox calls these from within Connection::run(), during which this object exists. Calls
  // for a connection that was replaced have no effect.
  const auto isCurrent = [encoding, number = encoding->connections] {
    return encoding->connections == number;
  };
  tensor.openMetadata = [this, isCurrent, encoding, key, begin,
                         queuedAt = tensor.queuedAt](double queueSeconds) {
    if (isCurrent()) {
      log_->begun(key, queueSeconds);
      options_->recordActivity(TraceActivity::queue, key, queuedAt, now());
    }
    return openMetadata(*encoding, begin, queueSeconds);
  };
  const bool isTraced = options_->trace && options_->trace->wants(key);
  tensor.segmentWritten = [this, encoding, key, isTraced](std::uint64_t end, SteadyTime chosen,
                                                          SteadyTime written) {
    // Bytes that are sent again are no progress.
    if (end > encoding->written) {
      slot_->countProgress(end - std::exchange(encoding->written, end));
    }
    if (isTraced) options_->recordActivity(TraceActivity::send, key, chosen, written);
  };
  tensor.written = [this, isCurrent, encoding, key] {
    if (isCurrent() && log_->written(key, *encoding->wireBytes)) settle(key);
  };
  return tensor;
}

std::string TensorSender::openMetadata(const Encoding& encoding, std::uint64_t begin,
                                       double queueSeconds) const {
  const TensorMessage& message = encoding.message;
  wire::Tensor proto;
  toWire(message.key(), *proto.mutable_key());
  if (!isBlob(message.flow)) toWire(encoding.spec, *proto.mutable_spec());
  proto.set_codec(encoding.codec);
  proto.set_codec_level(static_cast<std::uint32_t>(encoding.level));
  proto.set_encoded_bytes(encoding.bytes.size());
  proto.set_offset(begin);
  proto.set_micro_batches(message.at.batch.count);
  proto.set_samples(message.at.batch.samples);
  proto.set_weight_version(message.weightVersion);
  const auto snrDb = options_->reportedSnr(message.key(), encoding.snrDb);
  if (snrDb) proto.set_snr_db(*snrDb);
  proto.set_encode_seconds(encoding.encodeSeconds);
  proto.set_queue_seconds(queueSeconds);
  return proto.SerializeAsString();
}

// ---- Acknowledgements ----

void TensorSender::acknowledged(const ReceivedReport& report) {
  if (!log_->isPending(report.key) && late_.get(report.key.flow) > 0) {
    --late_[report.key.flow];
    return;
  }
  if (log_->acknowledged(report)) settle(report.key);
}

// Later micro-batches prove that the peer has all tensors of this cut. Their acknowledgements,
// which cross another link, are still on their way. Returns false if not all of them were written.
bool TensorSender::release(const Key& key) {
  std::vector<std::shared_ptr<Encoding>> tensors;
  for (const auto& encoding : unsettled_) {
    Key each = encoding->message.key();
    each.flow.tensor = key.flow.tensor;
    if (each == key) tensors.push_back(encoding);
  }
  const auto isWritten = [&](const auto& each) { return log_->isWritten(each->message.key()); };
  if (!std::all_of(tensors.begin(), tensors.end(), isWritten)) return false;
  for (const auto& each : tensors) {
    each->isReleased = true;
    drop(*each);
  }
  return true;
}

// Settles the oldest released tensor without its acknowledgement.
void TensorSender::settleReleased() {
  const auto oldest = std::find_if(unsettled_.begin(), unsettled_.end(),
                                   [](const auto& encoding) { return encoding->isReleased; });
  if (oldest == unsettled_.end()) return;
  const Key key = (*oldest)->message.key();
  ++late_[key.flow];
  settle(key);
}

// Call when the tensor has been written and acknowledged.
void TensorSender::settle(const Key& key) {
  if (isBlob(key.flow)) {
    if (key.flow != kSumsClient) blobUnderWay_ = false;
  } else {
    order_->settled(key);
  }
  log_->settle(key, slot_->linkInfo());
  ++settled_[key.flow];
  [[maybe_unused]] const std::size_t erased = std::erase_if(
      unsettled_, [&](const auto& encoding) { return encoding->message.key() == key; });
  assert(erased == 1);
}

// ---- After a connection was replaced ----

void TensorSender::resume(const Arrived& peer) {
  checkArrived(peer);
  FlowMap<Arrived::OfFlow> left;  // arrived at the peer, and not yet matched with unsettled tensors
  for (const auto& [flow, count] : peer.flows) {
    left[flow] = {count.complete - settled_.get(flow), count.bytes};
  }
  for (const auto& encoding : std::deque(unsettled_)) {
    Arrived::OfFlow& count = left[encoding->message.flow];
    if (count.complete > 0) {
      --count.complete;
      arrived(encoding);
    } else {
      if (encoding->isReleased) {
        throw ProtocolError("bad-arrived", "the peer claims to lack " +
                                               toString(encoding->message.key()) +
                                               ", but the tensors after it answer it");
      }
      const std::uint64_t begin = std::exchange(count.bytes, 0);
      if (begin > encoding->bytes.size()) {
        throw ProtocolError("bad-arrived", "the peer claims " + std::to_string(begin) +
                                               " bytes of " + toString(encoding->message.key()) +
                                               ", which is shorter");
      }
      log_->sentAgain(encoding->message.key());
      send(encoding, begin);
    }
  }
}

void TensorSender::checkArrived(const Arrived& peer) const {
  FlowMap<std::uint64_t> sent = settled_;
  for (const auto& encoding : unsettled_) ++sent[encoding->message.flow];
  const auto check = [&](Flow flow) {
    const Arrived::OfFlow count = peer.flows.get(flow);
    const std::uint64_t settled = settled_.get(flow);
    const std::uint64_t all = sent.get(flow);
    if (settled <= count.complete && count.complete <= all &&
        (count.bytes == 0 || count.complete < all)) {
      return;
    }
    throw ProtocolError("bad-arrived",
                        "the peer claims to have received " + std::to_string(count.complete) +
                            " of " + flowName(flow) + "; " + std::to_string(all) + " were sent, " +
                            std::to_string(settled) + " acknowledged");
  };
  for (const auto& [flow, count] : sent) check(flow);
  for (const auto& [flow, count] : peer.flows) check(flow);
}

// The peer has the whole tensor; its acknowledgement may still be on its way.
void TensorSender::arrived(const std::shared_ptr<Encoding>& encoding) {
  ++encoding->connections;
  const Key key = encoding->message.key();
  const bool isAcknowledged = log_->written(key, *encoding->wireBytes);
  drop(*encoding);
  if (isAcknowledged) settle(key);
}

void TensorSender::drop(Encoding& encoding) {
  encoding.bytes = {};
  encoding.owner.reset();
  encoding.message.payload = Payload();
  encoding.charge = MemoryCharge();
}

}  // namespace cleave
