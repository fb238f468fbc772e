#include "common/link/incoming_tensors.h"

#include <cassert>
#include <utility>

#include "common/files/sha256.h"
#include "common/link/wire_messages.h"

namespace cleave {

IncomingTensors::IncomingTensors(const TensorLinkOptions& options, TransferOrder& order,
                                 std::shared_ptr<BufferPool> pool)
    : options_(options), order_(order), pool_(std::move(pool)) {
  if (options_.role == Role::server && options_.initialWeights) expectBlob(kWeightsBody);
  if (options_.role == Role::server && options_.partBytes > 0) expectBlob(kPartsClient);
  if (options_.stateBytes > 0) expectBlob(kStateClient);
}

// ---- Start of a tensor ----

void IncomingTensors::open(const FrameHeader& header, std::span<const std::byte> metadata) {
  const auto proto = parseMetadata<wire::Tensor>(FrameKind::tensor, metadata);
  if (header.stream <= lastStream_) {
    throw ProtocolError("bad-segment", "stream " + std::to_string(header.stream) +
                                           " is opened after stream " +
                                           std::to_string(lastStream_));
  }
  const Key key = keyFromWire(proto.key());
  if (interrupted_.contains(key.flow)) {
    return continueTensor(header, key, proto.offset(), proto.encoded_bytes());
  }
  if (proto.offset() != 0) {
    throw ProtocolError("bad-segment", toString(key) + " begins at byte " +
                                           std::to_string(proto.offset()) +
                                           ", but nothing of it has arrived");
  }
  checkDirection(key);
  IncomingTensor tensor;
  tensor.message.flow = key.flow;
  tensor.message.at = {key.phase, key.step, key.i, {proto.micro_batches(), proto.samples()}};
  tensor.message.weightVersion = proto.weight_version();
  tensor.codec = proto.codec();
  tensor.encodeSeconds = checkedSeconds(proto.encode_seconds());
  tensor.queueSeconds = checkedSeconds(proto.queue_seconds());
  tensor.opened = tensor.segmentBegan = now();
  if (isBlob(key.flow)) {
    checkBlob(tensor, proto.encoded_bytes());
  } else {
    tensor.spec = specFromWire(proto.spec());
    tensor.level = levelOf(key, proto.codec_level());
    tensor.message.at.batch = checkedDivision(tensor.message);
    checkTensor(tensor, proto.encoded_bytes());
  }
  if (header.payloadBytes > proto.encoded_bytes()) {
    throw ProtocolError("bad-segment", "the first segment of " + toString(key) +
                                           " is longer than the tensor's encoding");
  }
  // Each tensor may arrive only once. These checks are the only limit on the allocations that a
  // peer can cause.
  if (isBlob(key.flow)) {
    expectedBlobs_[key.flow] = false;
  } else {
    order_.opened(key);
    options_.levels->arrived(key, tensor.level);
    if (proto.has_snr_db()) {
      const double snrDb = checkedSnr(proto.snr_db());
      if (options_.watched && options_.isOfWatchedStep(key)) options_.watched(key, snrDb);
    }
  }
  for (const auto& [stream, open] : streams_) {
    if (open.message.flow != key.flow) continue;
    throw ProtocolError("bad-segment", toString(key) + " begins before " +
                                           toString(open.message.key()) + " is complete");
  }
  tensor.buffer = pool_->acquire(proto.encoded_bytes());
  lastStream_ = header.stream;
  streams_.emplace(header.stream, std::move(tensor));
}

// The tensor was checked when it began, over an earlier connection.
void IncomingTensors::continueTensor(const FrameHeader& header, const Key& key,
                                     std::uint64_t offset, std::uint64_t encodedBytes) {
  const auto found = interrupted_.find(key.flow);
  IncomingTensor& tensor = found->second;
  const std::size_t size = tensor.buffer.size();
  if (key != tensor.message.key() || offset != tensor.received || encodedBytes != size ||
      header.payloadBytes > size - tensor.received) {
    throw ProtocolError("bad-segment", toString(tensor.message.key()) + " must continue at byte " +
                                           std::to_string(tensor.received) + ", but " +
                                           toString(key) + " arrived from byte " +
                                           std::to_string(offset));
  }
  tensor.segmentBegan = now();
  lastStream_ = header.stream;
  streams_.emplace(header.stream, std::move(tensor));
  interrupted_.erase(found);
}

void IncomingTensors::checkDirection(const Key& key) const {
  if (isBlob(key.flow)) {
    if (expectedBlobs_.get(key.flow)) return;
    throw ProtocolError("unexpected-message", std::string(flowName(key.flow)) +
                                                  " arrived, but no such blob was requested");
  }
  const bool atServer = options_.role == Role::server;
  if (!options_.place.contains(key.flow)) {
    throw ProtocolError("bad-key", toString(key) + " is not a flow of this run");
  }
  if (options_.elsewhere.get(key.flow)) {
    throw ProtocolError("bad-key", toString(key) + " does not cross this link");
  }
  if (options_.place.isUp(key.flow) == atServer) return;
  const char* peer = options_.isEdge ? "other server" : atServer ? "client" : "server";
  throw ProtocolError("unexpected-message",
                      toString(key) + " is not a tensor that the " + peer + " sends");
}

CodecLevel IncomingTensors::levelOf(const Key& key, std::uint32_t level) const {
  if (level == 0) return CodecLevel::own;
  if (!options_.hasCodecLevels || level >= kCodecLevels) {
    throw ProtocolError("bad-tensor", toString(key) + " has the codec level " +
                                          std::to_string(level) + ", which the run does not have");
  }
  return static_cast<CodecLevel>(level);
}

Division IncomingTensors::checkedDivision(const TensorMessage& message) const {
  const MicroBatch& at = message.at;
  const std::uint32_t count = at.batch.count, samples = at.batch.samples;
  if (samples > 0 && samples <= options_.maxBatch && at.step > 0) {
    Division agreed = options_.divisionOf(at.phase, at.step, samples);
    if (agreed.count == count && agreed.samples == samples && at.i < count) return agreed;
  }
  throw ProtocolError("bad-key", toString(message.key()) +
                                     " does not fit the agreed batch: " + std::to_string(samples) +
                                     " samples in " + std::to_string(count) + " micro-batches");
}

void IncomingTensors::checkTensor(const IncomingTensor& tensor, std::uint64_t encodedBytes) const {
  const MicroBatch& at = tensor.message.at;
  const Flow flow = tensor.message.flow;
  const std::string name = toString(tensor.message.key());
  const TensorSpec agreed = options_.spec(flow, at.size());
  if (tensor.spec != agreed) {
    throw ProtocolError("bad-tensor", name + " is " + toString(tensor.spec) + ", but " +
                                          toString(agreed) + " was agreed");
  }
  const Codec& codec = options_.codec(flow, tensor.level);
  if (tensor.codec != codec.spec()) {
    throw ProtocolError("bad-tensor",
                        name + " is encoded with a codec other than the agreed " + codec.spec());
  }
  const std::size_t max = options_.maxEncodedBytes(flow, agreed, tensor.level);
  if (encodedBytes > max || (codec.isIdentity() && encodedBytes != max)) {
    throw ProtocolError("bad-tensor", name + " claims " + std::to_string(encodedBytes) +
                                          " bytes; its codec produces at most " +
                                          std::to_string(max));
  }
}

void IncomingTensors::checkBlob(const IncomingTensor& tensor, std::uint64_t encodedBytes) const {
  const std::string name = flowName(tensor.message.flow);
  if (tensor.message.key() != Key{Phase::train, 0, 0, tensor.message.flow}) {
    throw ProtocolError("bad-key", name + " has a step or a micro-batch");
  }
  if (tensor.codec != kBlobCodec) throw ProtocolError("bad-tensor", name + " has a codec");
  if (tensor.message.flow == kTraceBody && !options_.trace) {
    throw ProtocolError("bad-tensor", name + " arrived, but no trace was requested");
  }
  const std::uint64_t max = maxBlobBytes(tensor.message.flow);
  if (encodedBytes > max) {
    throw ProtocolError("bad-tensor", name + " claims " + std::to_string(encodedBytes) +
                                          " bytes; at most " + std::to_string(max) +
                                          " were agreed");
  }
}

std::uint64_t IncomingTensors::maxBlobBytes(Flow flow) const {
  if (flow == kTraceBody) return options_.trace ? kMaxTraceBytes : 0;
  if (flow == kStateClient) return options_.stateBytes;
  return flow == kPartsClient || flow == kSumsClient ? options_.partBytes : options_.maxBlobBytes;
}

// ---- Payload ----

void IncomingTensors::continueStream(const FrameHeader& header,
                                     std::span<const std::byte> metadata) {
  const auto proto = parseMetadata<wire::Segment>(FrameKind::segment, metadata);
  const auto found = streams_.find(header.stream);
  if (found == streams_.end()) {
    throw ProtocolError(
        "unknown-stream",
        "a segment arrived for stream " + std::to_string(header.stream) + ", which is not open");
  }
  IncomingTensor& tensor = found->second;
  const std::string name = toString(tensor.message.key());
  if (proto.offset() != tensor.received ||
      header.payloadBytes > tensor.buffer.size() - tensor.received) {
    throw ProtocolError("bad-segment", "a segment of " + name + " starts at byte " +
                                           std::to_string(proto.offset()) + " with " +
                                           std::to_string(header.payloadBytes) + " bytes; " +
                                           std::to_string(tensor.received) + " of " +
                                           std::to_string(tensor.buffer.size()) + " have arrived");
  }
  if (!proto.sha256().empty()) {
    const bool last = proto.offset() + header.payloadBytes == tensor.buffer.size();
    if (!isBlob(tensor.message.flow) || !last || proto.sha256().size() != kSha256Bytes) {
      throw ProtocolError("bad-segment", "a segment of " + name + " has a misplaced digest");
    }
    tensor.sha256 = proto.sha256();
  } else if (header.payloadBytes == 0) {
    throw ProtocolError("bad-segment", "a segment of " + name + " is empty");
  }
  if (options_.trace) tensor.segmentBegan = now();
}

std::span<std::byte> IncomingTensors::place(const FrameHeader& header) {
  IncomingTensor& tensor = streams_.at(header.stream);
  assert(header.payloadBytes <= tensor.buffer.size() - tensor.received);
  return tensor.buffer.span().subspan(tensor.received, header.payloadBytes);
}

std::optional<IncomingTensor> IncomingTensors::received(const FrameHeader& header) {
  const auto found = streams_.find(header.stream);
  assert(found != streams_.end());
  IncomingTensor& tensor = found->second;
  assert(header.payloadBytes <= tensor.buffer.size() - tensor.received);
  tensor.received += header.payloadBytes;
  tensor.wireBytes += kHeaderBytes + header.metadataBytes + header.payloadBytes;
  if (options_.trace) {
    options_.trace->moved(TraceActivity::receive, tensor.message.key(), tensor.segmentBegan, now());
  }
  const bool digestMissing = isBlob(tensor.message.flow) && tensor.sha256.empty();
  if (tensor.received < tensor.buffer.size() || digestMissing) return std::nullopt;
  IncomingTensor complete = std::move(tensor);
  streams_.erase(found);
  ++complete_[complete.message.flow];
  return complete;
}

// ---- Connections ----

void IncomingTensors::detach() {
  for (auto& [stream, tensor] : streams_) {
    tensor.sha256.clear();  // the digest came with a last segment that did not arrive completely
                            // and will be sent again
    assert(!interrupted_.contains(tensor.message.flow));
    interrupted_.emplace(tensor.message.flow, std::move(tensor));
  }
  streams_.clear();
  lastStream_ = 0;
}

FlowMap<Arrived::OfFlow> IncomingTensors::arrived() const {
  FlowMap<Arrived::OfFlow> flows;
  for (const auto& [flow, count] : complete_) flows[flow].complete = count;
  for (const auto& [flow, tensor] : interrupted_) flows[flow].bytes = tensor.received;
  return flows;
}

}  // namespace cleave
