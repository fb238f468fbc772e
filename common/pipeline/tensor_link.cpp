#include "common/pipeline/tensor_link.h"

#include <openssl/sha.h>

#include <algorithm>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "common/pipeline/wire_messages.h"

namespace cleave {
namespace {

constexpr int kBlobPriority = 100;  // after every tensor of a step

std::string sha256(std::span<const std::byte> bytes) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

std::shared_ptr<const void> shareBuffer(Buffer buffer) {
  return std::make_shared<const Buffer>(std::move(buffer));
}

}  // namespace

TensorLink::TensorLink(TensorLinkOptions options, std::shared_ptr<Connection> connection,
                       std::shared_ptr<BufferPool> pool, boost::asio::any_io_executor io,
                       boost::asio::any_io_executor codecThreads,
                       std::function<void(Message)> deliver,
                       std::function<void(const TransferRecord&)> record)
    : options_(std::move(options)),
      connection_(std::move(connection)),
      pool_(std::move(pool)),
      io_(std::move(io)),
      codecStrand_(boost::asio::make_strand(codecThreads)),
      deliver_(std::move(deliver)),
      record_(std::move(record)),
      incoming_(options_, pool_),
      codecs_(options_, pool_) {}

// At once where this is the io thread, so that a Received is queued before the engine hears of the
// tensor. What fails ends the connection, whose owner hears of it.
template <typename Function>
void TensorLink::onIo(Function function) {
  boost::asio::dispatch(io_, [self = shared_from_this(), function = std::move(function)]() mutable {
    try {
      function();
    } catch (...) {
      self->connection_->fail(std::current_exception());
    }
  });
}

template <typename Function>
void TensorLink::onCodecStrand(Function function) {
  boost::asio::post(codecStrand_,
                    [self = shared_from_this(), function = std::move(function)]() mutable {
                      try {
                        function();
                      } catch (...) {
                        self->failLater(std::current_exception());
                      }
                    });
}

void TensorLink::failLater(std::exception_ptr error) {
  onIo([this, error] { connection_->fail(error); });
}

// ---- Sending ----

void TensorLink::send(Message message) {
  if (auto* tensor = std::get_if<TensorMessage>(&message)) {
    sendTensor(std::move(*tensor));
  } else if (auto* blob = std::get_if<Blob>(&message)) {
    sendBlob(std::move(*blob));
  } else if (auto* done = std::get_if<BodyDone>(&message)) {
    {
      const std::lock_guard lock(totalsMutex_);
      const double codecSeconds = totals_.encodeSeconds + totals_.decodeSeconds;
      done->codecSeconds = codecSeconds - std::exchange(codecSecondsReported_, codecSeconds);
    }
    done->sendRate = connection_->sendRate();
    done->receiveRate = connection_->receiveRate();
    sendControl(FrameKind::bodyDone, toWire(*done));
  } else if (const auto* decision = std::get_if<StepDecision>(&message)) {
    sendControl(FrameKind::step, toWire(*decision));
  } else if (const auto* ok = std::get_if<StepOk>(&message)) {
    sendControl(FrameKind::stepOk, toWire(*ok));
  } else if (const auto* fetch = std::get_if<Fetch>(&message)) {
    sendControl(FrameKind::fetch, toWire(*fetch));
  }
}

void TensorLink::sendControl(FrameKind kind, std::string metadata) {
  onIo([this, kind, metadata = std::move(metadata)]() mutable {
    connection_->outbox().pushControl(kind, std::move(metadata));
    connection_->wake();
  });
}

void TensorLink::sendTensor(TensorMessage&& message) {
  if (!options_.codec(message.flow).isIdentity()) {
    onCodecStrand([this, message = std::move(message)]() mutable { encode(std::move(message)); });
    return;
  }
  const TensorView view = message.payload.view();
  auto encoding = std::make_shared<Encoding>();
  encoding->spec = view.spec;
  encoding->bytes = {view.data, view.spec.bytes()};
  encoding->owner = message.payload.owner();
  encoding->codec = options_.codec(message.flow).spec();
  encoding->message = std::move(message);
  onIo([this, encoding] { queue(encoding); });
}

void TensorLink::encode(TensorMessage&& message) {
  auto [bytes, begin, end, snrDb] = codecs_.encode(message.key(), message.payload.view());
  trace(TraceActivity::encode, message.key(), begin, end);
  auto encoding = std::make_shared<Encoding>();
  encoding->encodeSeconds = secondsBetween(begin, end);
  encoding->snrDb = snrDb;
  encoding->spec = message.payload.view().spec;
  encoding->codec = options_.codec(message.flow).spec();
  message.payload = Payload();
  encoding->message = std::move(message);
  encoding->bytes = bytes.span();
  encoding->owner = shareBuffer(std::move(bytes));
  {
    const std::lock_guard lock(totalsMutex_);
    totals_.encodeSeconds += encoding->encodeSeconds;
  }
  onIo([this, encoding] { queue(encoding); });
}

void TensorLink::sendBlob(Blob&& blob) {
  onCodecStrand([this, blob = std::move(blob)] {
    auto encoding = std::make_shared<Encoding>();
    encoding->message.flow = blob.flow;
    encoding->bytes = blob.bytes;
    encoding->owner = blob.owner;
    encoding->codec = kBlobCodec;
    encoding->sha256 = sha256(blob.bytes);
    onIo([this, encoding] { queue(encoding); });
  });
}

void TensorLink::queue(const std::shared_ptr<Encoding>& encoding) {
  const Key key = encoding->message.key();
  const bool blob = isBlob(key.flow);
  // Only replies are asked for again: a client that lost one repeats its request.
  if (options_.role == Role::server && !blob) kept_[key] = encoding;

  // Both sides acknowledge what arrives before they send on: only a peer that never does leaves
  // more.
  const std::size_t mostPending = std::size_t{8} * options_.inFlight + 64;
  if (pending_.size() >= mostPending) {
    throw ProtocolError("too-many-in-flight", "the peer has left " + std::to_string(mostPending) +
                                                  " tensors without a Received");
  }
  auto pending = std::make_shared<Pending>();
  TransferRecord& record = pending->record;
  record.sent = true;
  record.key = key;
  record.codec = encoding->codec;
  record.spec = encoding->spec;
  record.rawBytes = blob ? encoding->bytes.size() : encoding->spec.bytes();
  record.encodeSeconds = encoding->encodeSeconds;
  record.snrDb = encoding->snrDb;
  pending_.emplace(key, pending);

  OutgoingTensor tensor;
  tensor.bytes = encoding->bytes;
  tensor.owner = encoding->owner;
  tensor.priority = blob ? kBlobPriority : options_.priority(key.flow);
  tensor.queuedAt = now();
  tensor.sha256 = encoding->sha256;
  // The outbox calls these within Connection::run(), which this link outlives.
  tensor.openMetadata = [this, encoding, pending, queuedAt = tensor.queuedAt](double queueSeconds) {
    pending->record.queueSeconds = queueSeconds;
    trace(TraceActivity::queue, pending->record.key, queuedAt, now());
    return openMetadata(*encoding, queueSeconds);
  };
  if (options_.trace && options_.trace->wants(key)) {
    tensor.segmentWritten = [this, key](SteadyTime chosen, SteadyTime written) {
      trace(TraceActivity::send, key, chosen, written);
    };
  }
  tensor.written = [this, pending](std::uint64_t wireBytes) {
    pending->record.wireBytes = wireBytes;
    pending->written = true;
    settle(pending);
  };
  connection_->outbox().pushTensor(std::move(tensor));
  connection_->wake();
}

std::string TensorLink::openMetadata(const Encoding& encoding, double queueSeconds) const {
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

void TensorLink::resend(const Key& key) {
  onIo([this, key] {
    const auto found = kept_.find(key);
    if (found != kept_.end()) return queue(found->second);
    const std::lock_guard lock(totalsMutex_);
    ++totals_.duplicates;
  });
}

void TensorLink::forget(const Key& key) {
  onIo([this, key] { kept_.erase(key); });
}

void TensorLink::forgetBatch(Phase phase, std::uint64_t step) {
  onIo([this, phase, step] {
    std::erase_if(kept_, [&](const auto& entry) {
      return entry.first.phase == phase && entry.first.step == step;
    });
    endBatches(phase, step);
  });
}

// A duplicate that comes later takes no credit: nothing may ever give it back.
void TensorLink::endBatches(Phase phase, std::uint64_t step) {
  std::uint64_t& ended = ended_[static_cast<std::size_t>(phase)];
  ended = std::max(ended, step);
  std::erase_if(inFlight_, [&](const auto& key) {
    return std::get<0>(key) == phase && std::get<1>(key) <= step;
  });
}

void TensorLink::commit(std::uint64_t step) {
  onCodecStrand([this, step] { codecs_.commit(step); });
  onIo([this, step] { endBatches(Phase::train, step); });
}

void TensorLink::receivedReport(const ReceivedReport& report) {
  const auto [first, last] = pending_.equal_range(report.key);
  for (auto entry = first; entry != last; ++entry) {
    const std::shared_ptr<Pending> pending = entry->second;
    if (pending->acknowledged) continue;
    pending->acknowledged = true;
    pending->record.wireSeconds = report.wireSeconds;
    pending->record.decodeSeconds = report.decodeSeconds;
    const Key& key = report.key;
    if (isBlob(key.flow)) blobUnderWay_ = false;
    if (key.flow == Flow::gradient0) kept_.erase(key);
    const bool lastOfItsMicroBatch =
        key.flow == Flow::gradient0 || (key.phase == Phase::eval && key.flow == Flow::activation1);
    if (lastOfItsMicroBatch) inFlight_.erase({key.phase, key.step, key.i});
    return settle(pending);
  }
  const std::lock_guard lock(totalsMutex_);
  ++totals_.duplicates;
}

void TensorLink::settle(const std::shared_ptr<Pending>& pending) {
  if (!pending->written || !pending->acknowledged) return;
  const auto [first, last] = pending_.equal_range(pending->record.key);
  for (auto entry = first; entry != last; ++entry) {
    if (entry->second != pending) continue;
    pending_.erase(entry);
    break;
  }
  pending->record.link = connection_->linkInfo();
  account(pending->record);
}

void TensorLink::recordUnacknowledged() {
  for (const auto& [key, pending] : pending_) {
    if (pending->written) account(pending->record);
  }
  pending_.clear();
}

// ---- Receiving ----

std::span<std::byte> TensorLink::placePayload(const FrameHeader& header,
                                              std::span<const std::byte> metadata) {
  if (header.kind == FrameKind::segment) {
    incoming_.goOn(header, metadata);
  } else if (const Key key = incoming_.open(header, metadata).message.key();
             key.flow == Flow::activation0) {
    takeCredit(key);
  }
  return incoming_.place(header);
}

// A micro-batch is in flight from its activation/0 until its last reply has been acknowledged.
void TensorLink::takeCredit(const Key& key) {
  if (key.step <= ended_[static_cast<std::size_t>(key.phase)]) return;
  inFlight_.insert({key.phase, key.step, key.i});
  if (inFlight_.size() > options_.inFlight) {
    throw ProtocolError("too-many-in-flight", toString(key) + " exceeds the " +
                                                  std::to_string(options_.inFlight) +
                                                  " micro-batches in flight that were agreed");
  }
}

void TensorLink::receivedFrame(const FrameHeader& header, std::span<const std::byte> metadata,
                               std::span<const std::byte>) {
  const bool atServer = options_.role == Role::server;
  switch (header.kind) {
    case FrameKind::tensor:
    case FrameKind::segment:
      if (std::optional<IncomingTensor> tensor = incoming_.received(header)) {
        finishTensor(std::move(*tensor));
      }
      return;
    case FrameKind::received:
      return receivedReport(receivedFromWire(metadata));
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
      if (atServer) return receivedFetch(metadata);
      break;
    default:
      break;
  }
  throw ProtocolError("unexpected-message",
                      std::string(frameKindName(header.kind)) + " goes the other way");
}

// One at a time: each answer is a copy of the body until it is acknowledged.
void TensorLink::receivedFetch(std::span<const std::byte> metadata) {
  const Fetch fetch = fetchFromWire(metadata);
  if (std::exchange(blobUnderWay_, true)) {
    throw ProtocolError("too-many-in-flight", "a Fetch came before the last one was answered");
  }
  if (fetch.flow == Flow::traceBody) return sendTrace();
  deliver_(fetch);
}

void TensorLink::sendTrace() {
  if (!options_.trace) {
    throw ProtocolError("unexpected-message",
                        "Fetch of trace/body came, but the run spec asks for no trace");
  }
  const auto bytes =
      std::make_shared<const std::vector<std::byte>>(toBytes(options_.trace->trace()));
  sendBlob(Blob{Flow::traceBody, {bytes->data(), bytes->size()}, bytes});
}

void TensorLink::finishTensor(IncomingTensor&& tensor) {
  const double wireSeconds = secondsSince(tensor.opened);
  auto shared = std::make_shared<IncomingTensor>(std::move(tensor));
  if (isBlob(shared->message.flow)) {
    onCodecStrand([this, shared, wireSeconds] { verifyBlob(std::move(*shared), wireSeconds); });
  } else if (!options_.codec(shared->message.flow).isIdentity()) {
    onCodecStrand([this, shared, wireSeconds] { decode(std::move(*shared), wireSeconds); });
  } else {
    const TensorView view{shared->buffer.data(), shared->spec};
    auto owner = shareBuffer(std::move(shared->buffer));
    deliverTensor(std::move(*shared), Payload(view, std::move(owner)), wireSeconds, 0);
  }
}

void TensorLink::decode(IncomingTensor&& tensor, double wireSeconds) {
  const Key key = tensor.message.key();
  auto [payload, begin, end] = codecs_.decode(key, tensor.buffer.span(), tensor.spec);
  trace(TraceActivity::decode, key, begin, end);
  deliverTensor(std::move(tensor), std::move(payload), wireSeconds, secondsBetween(begin, end));
}

void TensorLink::verifyBlob(IncomingTensor&& tensor, double wireSeconds) {
  if (sha256(tensor.buffer.span()) != tensor.sha256) {
    throw ProtocolError("bad-digest", std::string(flowName(tensor.message.flow)) +
                                          " does not have the SHA-256 that was sent with it");
  }
  if (tensor.message.flow == Flow::traceBody) {
    traceFromServer(tensor.buffer.span(), options_.trace->window(), options_.microBatches);
  }
  acknowledge(tensor, wireSeconds, 0);
  Blob blob;
  blob.flow = tensor.message.flow;
  auto buffer = std::make_shared<const Buffer>(std::move(tensor.buffer));
  blob.bytes = buffer->span();
  blob.owner = std::move(buffer);
  deliver_(std::move(blob));
}

void TensorLink::deliverTensor(IncomingTensor&& tensor, Payload payload, double wireSeconds,
                               double decodeSeconds) {
  acknowledge(tensor, wireSeconds, decodeSeconds);
  tensor.message.payload = std::move(payload);
  deliver_(std::move(tensor.message));
}

void TensorLink::acknowledge(const IncomingTensor& tensor, double wireSeconds,
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
  sendControl(FrameKind::received, toWire(ReceivedReport{record.key, wireSeconds, decodeSeconds}));
  onIo([this, record]() mutable {
    record.link = connection_->linkInfo();
    account(record);
  });
}

// ---- Accounts ----

void TensorLink::account(const TransferRecord& record) {
  {
    const std::lock_guard lock(totalsMutex_);
    const bool up = record.sent == (options_.role == Role::client);
    if (isBlob(record.key.flow)) {
      (up ? totals_.blobUp : totals_.blobDown) += record.wireBytes;
    } else {
      (up ? totals_.rawUp : totals_.rawDown) += record.rawBytes;
      (up ? totals_.wireUp : totals_.wireDown) += record.wireBytes;
      LinkTotals::FlowTotals& flow = totals_.flows[indexOf(record.key.flow)];
      ++flow.tensors;
      flow.wireBytes += record.wireBytes;
      flow.encodeSeconds += record.encodeSeconds.value_or(0);
      flow.decodeSeconds += record.decodeSeconds.value_or(0);
    }
    if (!record.sent) totals_.decodeSeconds += record.decodeSeconds.value_or(0);
    ++totals_.transfers;
  }
  record_(record);
}

LinkTotals TensorLink::totals() const {
  const ByteCounts bytes = connection_->bytes();
  const std::lock_guard lock(totalsMutex_);
  LinkTotals totals = totals_;
  const bool client = options_.role == Role::client;
  totals.controlUp = client ? bytes.controlSent : bytes.controlReceived;
  totals.controlDown = client ? bytes.controlReceived : bytes.controlSent;
  totals.peakUp = client ? connection_->peakSent() : connection_->peakReceived();
  totals.peakDown = client ? connection_->peakReceived() : connection_->peakSent();
  return totals;
}

}  // namespace cleave
