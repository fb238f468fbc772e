#include "common/pipeline/tensor_link.h"

#include <openssl/sha.h>

#include <algorithm>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "common/codec/raw.h"
#include "common/pipeline/wire_messages.h"

namespace cleave {
namespace {

constexpr int kBlobPriority = 100;  // after every tensor of a step
constexpr std::string_view kBlobCodec = "none";

bool isBlob(Flow flow) { return indexOf(flow) >= kTensorFlows; }

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
      record_(std::move(record)) {}

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
  const TensorView view = message.payload.view();
  const CodecContext context{options_.seed, message.key(), options_.helper};
  const bool train = message.at.phase == Phase::train;
  CutContext evalCut;
  CutContext& cut =
      train ? cuts_[{message.at.phase, message.at.step, message.at.i, cutOf(message.flow)}]
            : evalCut;
  const CutContext cutBefore = cut;
  const CodecState state = train ? states_[{message.flow, message.at.i}] : nullptr;

  Buffer buffer = pool_->acquire(options_.maxEncodedBytes(message.flow, view.spec));
  const SteadyTime start = now();
  const Encoded encoded = encodeOrRaw(context, state, cut, view, buffer.span());
  const SteadyTime end = now();
  auto encoding = std::make_shared<Encoding>();
  encoding->encodeSeconds = secondsBetween(start, end);
  trace(TraceActivity::encode, context.key, start, end);
  buffer.shrink(encoded.bytes);
  if (train && encoded.state) stagedStates_[{message.flow, message.at.i}] = encoded.state;

  std::uint64_t& count = encoded_[indexOf(message.flow)];
  if (options_.errorEvery > 0 && count++ % options_.errorEvery == 0) {
    encoding->snrDb = measureError(context, state, cutBefore, view, buffer.span());
  }
  encoding->spec = view.spec;
  encoding->codec = options_.codec(message.flow).spec();
  message.payload = Payload();
  encoding->message = std::move(message);
  encoding->bytes = buffer.span();
  encoding->owner = shareBuffer(std::move(buffer));
  {
    const std::lock_guard lock(totalsMutex_);
    totals_.encodeSeconds += encoding->encodeSeconds;
  }
  onIo([this, encoding] { queue(encoding); });
}

std::size_t TensorLinkOptions::maxEncodedBytes(Flow flow, const TensorSpec& tensor) const {
  const std::size_t most = codec(flow).maxEncodedBytes(tensor);
  return rawNonFinite ? std::max(most, rawPayloadBytes(tensor)) : most;
}

Encoded TensorLink::encodeOrRaw(const CodecContext& context, const CodecState& state,
                                CutContext& cut, const TensorView& view,
                                std::span<std::byte> out) const {
  const Flow flow = context.key.flow;
  const bool isThere = view.place == MemoryPlace::device;
  const DeviceCodec* const device = isThere ? deviceCodecOf(flow) : nullptr;
  if (isThere && device == nullptr) {
    throw std::logic_error(toString(context.key) + " is on a device that its codec is not on");
  }
  try {
    return (device != nullptr ? *device : options_.codec(flow))
        .encode(context, state, cut, view, out);
  } catch (const NonFiniteError&) {
    if (!options_.rawNonFinite) throw;
    if (device == nullptr) return encodeRaw(view, out);
    out[0] = kRawFormat;
    device->copyToHost(view.data, view.spec.bytes(), &out[1]);
    return {rawPayloadBytes(view.spec), nullptr};
  }
}

// Signal to noise of what the peer will decode; nothing where there is no noise, or for other
// dtypes than f32.
std::optional<double> TensorLink::measureError(const CodecContext& context, const CodecState& state,
                                               const CutContext& cut, const TensorView& view,
                                               std::span<const std::byte> encoded) {
  if (view.spec.dtype != DType::f32) return std::nullopt;
  Buffer copy;
  TensorView original = view;
  if (view.place == MemoryPlace::device) {
    copy = pool_->acquire(view.spec.bytes());
    deviceCodecOf(context.key.flow)->copyToHost(view.data, view.spec.bytes(), copy.data());
    original = {copy.data(), view.spec};
  }
  Buffer decoded = pool_->acquire(original.spec.bytes());
  CutContext cutCopy = cut;
  options_.codec(context.key.flow)
      .decode(context, state, cutCopy, encoded, {decoded.data(), original.spec});
  double signal = 0;
  double noise = 0;
  for (std::size_t j = 0; j < original.spec.elements(); ++j) {
    float x = 0;
    float y = 0;
    std::memcpy(&x, original.data + j * sizeof x, sizeof x);
    std::memcpy(&y, decoded.data() + j * sizeof y, sizeof y);
    const double difference = static_cast<double>(x) - static_cast<double>(y);
    signal += static_cast<double>(x) * static_cast<double>(x);
    noise += difference * difference;
  }
  if (!(noise > 0) || !(signal > 0)) return std::nullopt;
  return 10 * std::log10(signal / noise);
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
  onCodecStrand([this, step] {
    for (auto& [key, state] : stagedStates_) states_[key] = std::move(state);
    stagedStates_.clear();
    std::erase_if(cuts_, [step](const auto& entry) { return std::get<1>(entry.first) <= step; });
  });
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
  return header.kind == FrameKind::tensor ? openStream(header, metadata)
                                          : continueStream(header, metadata);
}

std::span<std::byte> TensorLink::openStream(const FrameHeader& header,
                                            std::span<const std::byte> metadata) {
  const auto proto = parseMetadata<wire::Tensor>(FrameKind::tensor, metadata);
  if (header.stream <= lastStream_) {
    throw ProtocolError("bad-segment", "stream " + std::to_string(header.stream) +
                                           " is opened after stream " +
                                           std::to_string(lastStream_));
  }
  const std::size_t mostStreams = std::size_t{4} * options_.inFlight + 2;
  if (streams_.size() >= mostStreams) {
    throw ProtocolError("too-many-in-flight",
                        "more than " + std::to_string(mostStreams) + " tensors arrive at once");
  }
  const Key key = keyFromWire(proto.key());
  checkDirection(key);
  Stream stream;
  stream.message.flow = key.flow;
  stream.message.at = {key.phase, key.step, key.i, proto.micro_batches(), proto.samples()};
  stream.message.weightVersion = proto.weight_version();
  stream.codec = proto.codec();
  stream.encodeSeconds = checkedSeconds(proto.encode_seconds());
  stream.queueSeconds = checkedSeconds(proto.queue_seconds());
  stream.opened = stream.segmentBegan = now();
  if (isBlob(key.flow)) {
    checkBlob(stream, proto.encoded_bytes());
  } else {
    stream.spec = specFromWire(proto.spec());
    checkTensor(stream, proto.encoded_bytes());
    if (key.flow == Flow::activation0) takeCredit(key);
  }
  if (header.payloadBytes > proto.encoded_bytes()) {
    throw ProtocolError("bad-segment", "the first segment of " + toString(key) +
                                           " is longer than the tensor's encoding");
  }
  stream.buffer = pool_->acquire(proto.encoded_bytes());
  lastStream_ = header.stream;
  Stream& placed = streams_.emplace(header.stream, std::move(stream)).first->second;
  return placed.buffer.span().first(header.payloadBytes);
}

void TensorLink::checkDirection(const Key& key) {
  const bool atServer = options_.role == Role::server;
  if (isUp(key.flow) == atServer) return;
  if (atServer && key.flow == Flow::weightsBody && options_.initialWeights &&
      !std::exchange(weightsOpened_, true)) {
    return;
  }
  throw ProtocolError("unexpected-message", toString(key) + " goes the other way");
}

void TensorLink::checkTensor(const Stream& stream, std::uint64_t encodedBytes) const {
  const MicroBatch& at = stream.message.at;
  const Flow flow = stream.message.flow;
  const std::string name = toString(stream.message.key());
  if (at.samples == 0 || at.samples > options_.maxBatch ||
      at.microBatches != microBatchCount(at.samples, options_.microBatches) ||
      at.i >= at.microBatches) {
    throw ProtocolError("bad-key",
                        name + " does not fit the agreed batch: " + std::to_string(at.samples) +
                            " samples in " + std::to_string(at.microBatches) + " micro-batches");
  }
  const TensorSpec agreed = options_.spec(flow, microBatchSize(at.samples, at.microBatches, at.i));
  if (stream.spec != agreed) {
    throw ProtocolError("bad-tensor", name + " is " + toString(stream.spec) + ", but " +
                                          toString(agreed) + " was agreed");
  }
  const Codec& codec = options_.codec(flow);
  if (stream.codec != codec.spec()) {
    throw ProtocolError("bad-tensor",
                        name + " comes by another codec than the agreed " + codec.spec());
  }
  const std::size_t most = options_.maxEncodedBytes(flow, agreed);
  if (encodedBytes > most || (codec.isIdentity() && encodedBytes != most)) {
    throw ProtocolError("bad-tensor", name + " claims " + std::to_string(encodedBytes) +
                                          " bytes; its codec makes at most " +
                                          std::to_string(most));
  }
}

void TensorLink::checkBlob(const Stream& stream, std::uint64_t encodedBytes) const {
  const std::string name(flowName(stream.message.flow));
  if (stream.codec != kBlobCodec) throw ProtocolError("bad-tensor", name + " has a codec");
  if (stream.message.flow == Flow::traceBody && !options_.trace) {
    throw ProtocolError("bad-tensor", name + " came, and no trace was asked for");
  }
  const std::uint64_t most = mostBlobBytes(stream.message.flow);
  if (encodedBytes > most) {
    throw ProtocolError("bad-tensor", name + " claims " + std::to_string(encodedBytes) +
                                          " bytes; at most " + std::to_string(most) +
                                          " were agreed");
  }
}

std::uint64_t TensorLink::mostBlobBytes(Flow flow) const {
  if (flow != Flow::traceBody) return options_.maxBlobBytes;
  return options_.trace ? kMaxTraceBytes : 0;
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

std::span<std::byte> TensorLink::continueStream(const FrameHeader& header,
                                                std::span<const std::byte> metadata) {
  const auto proto = parseMetadata<wire::Segment>(FrameKind::segment, metadata);
  const auto found = streams_.find(header.stream);
  if (found == streams_.end()) {
    throw ProtocolError(
        "unknown-stream",
        "a segment came for stream " + std::to_string(header.stream) + ", which is not open");
  }
  Stream& stream = found->second;
  const std::string name = toString(stream.message.key());
  if (proto.offset() != stream.received ||
      header.payloadBytes > stream.buffer.size() - stream.received) {
    throw ProtocolError("bad-segment", "a segment of " + name + " starts at byte " +
                                           std::to_string(proto.offset()) + " with " +
                                           std::to_string(header.payloadBytes) + " bytes; " +
                                           std::to_string(stream.received) + " of " +
                                           std::to_string(stream.buffer.size()) + " have arrived");
  }
  if (!proto.sha256().empty()) {
    const bool last = proto.offset() + header.payloadBytes == stream.buffer.size();
    if (!isBlob(stream.message.flow) || !last || proto.sha256().size() != SHA256_DIGEST_LENGTH) {
      throw ProtocolError("bad-segment", "a segment of " + name + " has a digest out of place");
    }
    stream.sha256 = proto.sha256();
  } else if (header.payloadBytes == 0) {
    throw ProtocolError("bad-segment", "a segment of " + name + " is empty");
  }
  if (options_.trace) stream.segmentBegan = now();
  return stream.buffer.span().subspan(stream.received, header.payloadBytes);
}

void TensorLink::receivedFrame(const FrameHeader& header, std::span<const std::byte> metadata,
                               std::span<const std::byte> payload) {
  const bool atServer = options_.role == Role::server;
  switch (header.kind) {
    case FrameKind::tensor:
    case FrameKind::segment: {
      auto node = streams_.extract(header.stream);
      Stream& stream = node.mapped();
      stream.received += payload.size();
      stream.wireBytes += kHeaderBytes + metadata.size() + payload.size();
      if (options_.trace) {
        trace(TraceActivity::receive, stream.message.key(), stream.segmentBegan, now());
      }
      const bool digestMissing = isBlob(stream.message.flow) && stream.sha256.empty();
      if (!stream.complete() || digestMissing) {
        streams_.insert(std::move(node));
      } else {
        finishStream(std::move(stream));
      }
      return;
    }
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

void TensorLink::finishStream(Stream&& stream) {
  const double wireSeconds = secondsSince(stream.opened);
  auto shared = std::make_shared<Stream>(std::move(stream));
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

void TensorLink::decode(Stream&& stream, double wireSeconds) {
  const Flow flow = stream.message.flow;
  const MicroBatch& at = stream.message.at;
  const bool train = at.phase == Phase::train;
  CutContext evalCut;
  CutContext& cut = train ? cuts_[{at.phase, at.step, at.i, cutOf(flow)}] : evalCut;
  const CodecState state = train ? states_[{flow, at.i}] : nullptr;
  auto [out, payload] = roomFor(flow, stream.spec);
  const DeviceCodec* const device = deviceCodecOf(flow);
  const SteadyTime start = now();
  CodecState after = (device != nullptr ? *device : options_.codec(flow))
                         .decode({options_.seed, stream.message.key(), options_.helper}, state, cut,
                                 stream.buffer.span(), out);
  const SteadyTime end = now();
  const double decodeSeconds = secondsBetween(start, end);
  trace(TraceActivity::decode, stream.message.key(), start, end);
  if (train && after) stagedStates_[{flow, at.i}] = std::move(after);
  deliverTensor(std::move(stream), std::move(payload), wireSeconds, decodeSeconds);
}

// Where the stage wants it.
TensorLink::Room TensorLink::roomFor(Flow flow, const TensorSpec& spec) {
  if (const DeviceCodec* const device = deviceCodecOf(flow)) {
    std::shared_ptr<std::byte> memory = device->allocate(spec.bytes());
    std::byte* const data = memory.get();
    return {{data, spec}, Payload({data, spec, MemoryPlace::device}, std::move(memory))};
  }
  Buffer buffer = pool_->acquire(spec.bytes());
  std::byte* const data = buffer.data();
  return {{data, spec}, Payload({data, spec}, shareBuffer(std::move(buffer)))};
}

void TensorLink::verifyBlob(Stream&& stream, double wireSeconds) {
  if (sha256(stream.buffer.span()) != stream.sha256) {
    throw ProtocolError("bad-digest", std::string(flowName(stream.message.flow)) +
                                          " does not have the SHA-256 that was sent with it");
  }
  if (stream.message.flow == Flow::traceBody) {
    traceFromServer(stream.buffer.span(), options_.trace->window(), options_.microBatches);
  }
  acknowledge(stream, wireSeconds, 0);
  Blob blob;
  blob.flow = stream.message.flow;
  auto buffer = std::make_shared<const Buffer>(std::move(stream.buffer));
  blob.bytes = buffer->span();
  blob.owner = std::move(buffer);
  deliver_(std::move(blob));
}

void TensorLink::deliverTensor(Stream&& stream, Payload payload, double wireSeconds,
                               double decodeSeconds) {
  acknowledge(stream, wireSeconds, decodeSeconds);
  stream.message.payload = std::move(payload);
  deliver_(std::move(stream.message));
}

void TensorLink::acknowledge(const Stream& stream, double wireSeconds, double decodeSeconds) {
  TransferRecord record;
  record.key = stream.message.key();
  record.codec = stream.codec;
  record.spec = stream.spec;
  record.rawBytes = isBlob(record.key.flow) ? stream.received : stream.spec.bytes();
  record.wireBytes = stream.wireBytes;
  record.encodeSeconds = stream.encodeSeconds;
  record.queueSeconds = stream.queueSeconds;
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
