#include "common/link/tensor_link.h"

#include <openssl/evp.h>
#include <openssl/sha.h>

#include <algorithm>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "common/link/wire_messages.h"

namespace cleave {
namespace {

std::shared_ptr<const void> shareBuffer(Buffer buffer) {
  return std::make_shared<const Buffer>(std::move(buffer));
}

}  // namespace

// Computes the SHA-256 of a blob in pieces.
class TensorLink::BlobDigest {
 public:
  explicit BlobDigest(std::span<const std::byte> bytes) : rest_(bytes) {
    if (!state_ || EVP_DigestInit_ex(state_.get(), EVP_sha256(), nullptr) != 1) {
      throw std::bad_alloc();
    }
  }
  // Returns whether that was the last piece.
  bool addPiece() {
    constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
    const auto piece = rest_.first(std::min(rest_.size(), kPieceBytes));
    EVP_DigestUpdate(state_.get(), piece.data(), piece.size());
    rest_ = rest_.subspan(piece.size());
    return rest_.empty();
  }
  std::string finish() {
    std::string digest(SHA256_DIGEST_LENGTH, '\0');
    EVP_DigestFinal_ex(state_.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr);
    return digest;
  }

 private:
  std::span<const std::byte> rest_;
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> state_{EVP_MD_CTX_new(),
                                                                 &EVP_MD_CTX_free};
};

TensorLink::TensorLink(TensorLinkOptions options, std::shared_ptr<Connection> connection,
                       std::shared_ptr<BufferPool> pool, boost::asio::any_io_executor io,
                       std::function<void(Message)> deliver,
                       std::function<void(const TransferRecord&)> record)
    : options_(std::move(options)),
      connection_(std::move(connection)),
      pool_(options_.account ? pool->chargedTo(options_.account) : std::move(pool)),
      io_(std::move(io)),
      deliver_(std::move(deliver)),
      record_(std::move(record)),
      order_(options_.role, options_.place, options_.inFlight, options_.account),
      incoming_(options_, order_, pool_),
      codecs_(options_, pool_) {}

// Runs immediately if this is the io thread, so that a Received is queued before the engine
// receives the tensor. An exception ends the connection, which reports it to its owner.
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
void TensorLink::inCodecQueue(Function function) {
  ++codecWork_;
  // Held by a shared_ptr because std::function requires copyable functions, and one that owns a
  // tensor is not copyable.
  auto task = [self = shared_from_this(),
               shared = std::make_shared<Function>(std::move(function))] {
    try {
      (*shared)();
    } catch (...) {
      self->failLater(std::current_exception());
    }
    --self->codecWork_;
  };
  if (!options_.codecQueue) return boost::asio::post(io_, std::move(task));
  options_.codecQueue->post(std::move(task));
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
    onIo([this, flow = fetch->flow] { incoming_.expectBlob(flow); });
    sendControl(FrameKind::fetch, toWire(*fetch));
  }
}

void TensorLink::sendControl(FrameKind kind, std::string metadata) {
  onIo([this, kind, metadata = std::move(metadata)]() mutable {
    connection_->outbox().pushControl(kind, std::move(metadata));
    connection_->wake();
  });
}

// A stage's output is charged to the session until it has been sent or encoded.
MemoryCharge TensorLink::chargeFor(const TensorView& view) const {
  const bool isHere = view.place != MemoryPlace::device;
  return MemoryCharge(options_.account, isHere ? BufferPool::capacityFor(view.spec.bytes()) : 0);
}

void TensorLink::sendTensor(TensorMessage&& message) {
  const TensorView view = message.payload.view();
  MemoryCharge charge = chargeFor(view);
  if (!options_.codec(message.flow).isIdentity()) {
    inCodecQueue([this, message = std::move(message), charge = std::move(charge)]() mutable {
      const MemoryCharge untilEncoded = std::move(charge);
      encode(std::move(message));
    });
    return;
  }
  auto encoding = std::make_shared<Encoding>();
  encoding->charge = std::move(charge);
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
  auto encoding = std::make_shared<Encoding>();
  encoding->charge = MemoryCharge(options_.account, blob.bytes.size());
  encoding->message.flow = blob.flow;
  encoding->bytes = blob.bytes;
  encoding->owner = std::move(blob.owner);
  encoding->codec = kBlobCodec;
  digest(encoding->bytes, [this, encoding](std::string sha256) {
    encoding->sha256 = std::move(sha256);
    onIo([this, encoding] { queue(encoding); });
  });
}

// Each piece is a separate task in the codec queue, so that a step's tensors do not have to wait
// for a large blob.
void TensorLink::digest(std::span<const std::byte> bytes,
                        std::function<void(std::string sha256)> done) {
  digestOn(std::make_shared<BlobDigest>(bytes), std::move(done));
}

void TensorLink::digestOn(const std::shared_ptr<BlobDigest>& digest,
                          std::function<void(std::string sha256)> done) {
  inCodecQueue([this, digest, done = std::move(done)]() mutable {
    if (!digest->addPiece()) return digestOn(digest, std::move(done));
    done(digest->finish());
  });
}

void TensorLink::queue(const std::shared_ptr<Encoding>& encoding) {
  const Key key = encoding->message.key();
  const bool blob = isBlob(key.flow);
  if (!blob) order_.queued(key);

  // Both sides acknowledge what arrives before they send the next tensor, so only a peer that does
  // not acknowledge exceeds this.
  const std::size_t mostPending = std::size_t{8} * options_.inFlight + 64;
  if (pending_.size() >= mostPending) {
    throw ProtocolError("too-many-in-flight", "the peer has not acknowledged " +
                                                  std::to_string(mostPending) + " tensors");
  }
  TransferRecord& record = pending_[key].record;
  record.sent = true;
  record.key = key;
  record.codec = encoding->codec;
  record.spec = encoding->spec;
  record.rawBytes = blob ? encoding->bytes.size() : encoding->spec.bytes();
  record.encodeSeconds = encoding->encodeSeconds;
  record.snrDb = encoding->snrDb;

  OutgoingTensor tensor;
  tensor.bytes = encoding->bytes;
  tensor.owner = encoding->owner;
  tensor.priority = blob ? 0 : options_.priority(key.flow, options_.place);
  // Blobs that the client fetches must not delay the step. The client's own initial weights can: no
  // step runs before they arrive.
  tensor.isBackground = blob && options_.role == Role::server;
  tensor.queuedAt = now();
  tensor.sha256 = encoding->sha256;
  // The outbox calls these from within Connection::run(), during which this link exists.
  tensor.openMetadata = [this, encoding, key, queuedAt = tensor.queuedAt](double queueSeconds) {
    pending_.at(key).record.queueSeconds = queueSeconds;
    trace(TraceActivity::queue, key, queuedAt, now());
    return openMetadata(*encoding, queueSeconds);
  };
  if (options_.trace && options_.trace->wants(key)) {
    tensor.segmentWritten = [this, key](SteadyTime chosen, SteadyTime written) {
      trace(TraceActivity::send, key, chosen, written);
    };
  }
  tensor.written = [this, key](std::uint64_t wireBytes) {
    Pending& sent = pending_.at(key);
    sent.record.wireBytes = wireBytes;
    sent.written = true;
    if (sent.acknowledged) settle(key);
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

void TensorLink::commit() {
  inCodecQueue([this] { codecs_.commit(); });
}

void TensorLink::receivedReport(const ReceivedReport& ack) {
  const auto found = pending_.find(ack.key);
  if (found == pending_.end() || found->second.acknowledged) {
    throw ProtocolError("bad-key", "a Received arrived for " + toString(ack.key) +
                                       ", which was not sent, or was acknowledged before");
  }
  Pending& sent = found->second;
  sent.acknowledged = true;
  sent.record.wireSeconds = ack.wireSeconds;
  sent.record.decodeSeconds = ack.decodeSeconds;
  if (sent.written) settle(ack.key);
}

// The tensor has been sent and acknowledged.
void TensorLink::settle(const Key& key) {
  TransferRecord record = std::move(pending_.extract(key).mapped().record);
  if (isBlob(key.flow)) {
    blobUnderWay_ = false;
  } else {
    order_.settled(key);
  }
  record.link = connection_->linkInfo();
  account(record);
}

void TensorLink::recordUnacknowledged() {
  for (const auto& [key, sent] : pending_) {
    if (sent.written) account(sent.record);
  }
  pending_.clear();
}

// ---- Receiving ----

std::span<std::byte> TensorLink::placePayload(const FrameHeader& header,
                                              std::span<const std::byte> metadata) {
  if (header.kind == FrameKind::segment) {
    incoming_.continueStream(header, metadata);
  } else {
    incoming_.open(header, metadata);
  }
  return incoming_.place(header);
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
  throw ProtocolError("unexpected-message", std::string(frameKindName(header.kind)) +
                                                " is sent only in the other direction");
}

// One at a time: each answer holds a copy of the body until it is acknowledged.
void TensorLink::receivedFetch(std::span<const std::byte> metadata) {
  const Fetch fetch = fetchFromWire(metadata);
  if (std::exchange(blobUnderWay_, true)) {
    throw ProtocolError("too-many-in-flight", "a Fetch arrived before the last one was answered");
  }
  if (fetch.flow == kTraceBody) return sendTrace();
  deliver_(fetch);
}

void TensorLink::sendTrace() {
  if (!options_.trace) {
    throw ProtocolError("unexpected-message",
                        "Fetch of trace/body arrived, but the run spec requests no trace");
  }
  const auto bytes =
      std::make_shared<const std::vector<std::byte>>(toBytes(options_.trace->trace()));
  sendBlob(Blob{kTraceBody, {bytes->data(), bytes->size()}, bytes});
}

void TensorLink::finishTensor(IncomingTensor&& tensor) {
  const double wireSeconds = secondsSince(tensor.opened);
  auto shared = std::make_shared<IncomingTensor>(std::move(tensor));
  if (isBlob(shared->message.flow)) {
    digest(shared->buffer.span(), [this, shared, wireSeconds](const std::string& sha256) {
      verifyBlob(std::move(*shared), sha256, wireSeconds);
    });
  } else if (!options_.codec(shared->message.flow).isIdentity()) {
    inCodecQueue([this, shared, wireSeconds] { decode(std::move(*shared), wireSeconds); });
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

void TensorLink::verifyBlob(IncomingTensor&& tensor, const std::string& sha256,
                            double wireSeconds) {
  if (sha256 != tensor.sha256) {
    throw ProtocolError("bad-digest", std::string(flowName(tensor.message.flow)) +
                                          " does not have the SHA-256 that was sent with it");
  }
  if (tensor.message.flow == kTraceBody) {
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

// ---- Totals ----

void TensorLink::account(const TransferRecord& record) {
  {
    const std::lock_guard lock(totalsMutex_);
    const bool up = record.sent == (options_.role == Role::client);
    if (isBlob(record.key.flow)) {
      (up ? totals_.blobUp : totals_.blobDown) += record.wireBytes;
    } else {
      (up ? totals_.rawUp : totals_.rawDown) += record.rawBytes;
      (up ? totals_.wireUp : totals_.wireDown) += record.wireBytes;
      LinkTotals::FlowTotals& flow = totals_.flows[record.key.flow];
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
