#include "common/link/probe/probe_link.h"

#include <cassert>
#include <cstring>
#include <string>
#include <utility>

#include "common/core/random.h"
#include "common/link/wire_messages.h"

namespace cleave {
namespace {

constexpr const char* kName = "probe";  // phase and flow of all keys

// The block is random, so that nothing on the path can compress it.
std::span<const std::byte> block() {
  static const std::vector<std::byte> bytes = [] {
    std::vector<std::byte> random(kMaxSegmentBytes);
    const RandomKey key = randomKey(1, kName);
    for (std::size_t at = 0; at < random.size(); at += sizeof(std::uint64_t)) {
      const std::uint64_t bits = randomBits(key, at);
      std::memcpy(random.data() + at, &bits, sizeof bits);
    }
    return random;
  }();
  return bytes;
}

void setKey(std::uint64_t number, wire::Key& key) {
  key.set_phase(kName);
  key.set_step(number);
  key.set_flow(kName);
}

bool isKey(const wire::Key& key, std::uint64_t number) {
  return key.phase() == kName && key.flow() == kName && key.step() == number &&
         key.micro_batch() == 0;
}

void checkSize(std::uint64_t bytes) {
  if (bytes <= kMaxProbeBytes) return;
  throw ProtocolError("probe-too-large", "a probe of " + std::to_string(bytes) +
                                             " bytes was requested; at most " +
                                             std::to_string(kMaxProbeBytes) + " are allowed");
}

}  // namespace

ProbeLink::ProbeLink(Role role, Connection& connection,
                     std::function<void(const Finished&)> finished)
    : role_(role), connection_(connection), finished_(std::move(finished)) {
  block();  // created here, so that creating it does not affect a measurement
}

// ---- Sending ----

void ProbeLink::send(std::uint64_t bytes) {
  assert(!atServer() && !out_.busy && bytes <= kMaxProbeBytes);
  push(bytes);
}

void ProbeLink::fetch(std::uint64_t bytes) {
  assert(!atServer() && !in_.busy && bytes <= kMaxProbeBytes);
  in_ = {in_.number + 1, bytes, true};
  wire::Fetch fetch;
  fetch.set_flow(kName);
  fetch.set_bytes(bytes);
  connection_.outbox().pushControl(FrameKind::fetch, fetch.SerializeAsString());
  connection_.wake();
}

void ProbeLink::push(std::uint64_t bytes) {
  out_ = {out_.number + 1, bytes, true};
  OutgoingTensor stream;
  if (bytes > 0) stream.bytes = block();
  stream.repeated = bytes;
  stream.queuedAt = now();
  stream.openMetadata = [number = out_.number, bytes](double queueSeconds) {
    wire::Tensor tensor;
    setKey(number, *tensor.mutable_key());
    tensor.set_encoded_bytes(bytes);
    tensor.set_queue_seconds(queueSeconds);
    return tensor.SerializeAsString();
  };
  stream.segmentWritten = [this](std::uint64_t, SteadyTime, SteadyTime) { ++progress_; };
  ++unwritten_;
  stream.written = [this] { --unwritten_; };
  connection_.outbox().pushTensor(std::move(stream));
  connection_.wake();
}

// ---- Receiving ----

std::span<std::byte> ProbeLink::placePayload(const FrameHeader& header,
                                             std::span<const std::byte> metadata) {
  header.kind == FrameKind::tensor ? openStream(header, metadata)
                                   : continueStream(header, metadata);
  if (scratch_.size() < header.payloadBytes) scratch_.resize(header.payloadBytes);
  return std::span(scratch_).first(header.payloadBytes);
}

void ProbeLink::openStream(const FrameHeader& header, std::span<const std::byte> metadata) {
  const auto tensor = parseMetadata<wire::Tensor>(FrameKind::tensor, metadata);
  if (header.stream <= stream_) {
    throw ProtocolError("bad-segment", "stream " + std::to_string(header.stream) +
                                           " is opened after stream " + std::to_string(stream_));
  }
  if (open_) {
    throw ProtocolError("too-many-in-flight",
                        "a second stream of a probe begins before the first one ends");
  }
  if (!atServer() && !in_.busy) {
    throw ProtocolError("unexpected-message", "a stream arrived that was not requested");
  }
  const std::uint64_t expected = atServer() ? in_.number + 1 : in_.number;
  if (!isKey(tensor.key(), expected)) {
    throw ProtocolError("bad-key", "stream " + std::to_string(expected) +
                                       " of a probe was expected, but another stream arrived");
  }
  checkSize(tensor.encoded_bytes());
  if (tensor.has_spec() || !tensor.codec().empty() ||
      (!atServer() && tensor.encoded_bytes() != in_.bytes)) {
    throw ProtocolError("bad-tensor",
                        "a probe's stream has a spec, a codec or a size that was not requested");
  }
  if (header.payloadBytes > tensor.encoded_bytes()) {
    throw ProtocolError("bad-segment", "the first segment of a probe is longer than its stream");
  }
  in_ = {expected, tensor.encoded_bytes(), true};
  stream_ = header.stream;
  received_ = 0;
  open_ = true;
  opened_ = now();
}

void ProbeLink::continueStream(const FrameHeader& header, std::span<const std::byte> metadata) {
  const auto segment = parseMetadata<wire::Segment>(FrameKind::segment, metadata);
  if (!open_ || header.stream != stream_) {
    throw ProtocolError("unknown-stream",
                        "a Segment of stream " + std::to_string(header.stream) + " is not open");
  }
  if (segment.offset() != received_ || header.payloadBytes == 0 ||
      header.payloadBytes > in_.bytes - received_ || !segment.sha256().empty()) {
    throw ProtocolError("bad-segment",
                        "a Segment of a probe is out of order, empty, too long, or "
                        "has a digest");
  }
}

void ProbeLink::receivedFrame(const FrameHeader& header, std::span<const std::byte> metadata,
                              std::span<const std::byte> payload) {
  switch (header.kind) {
    case FrameKind::tensor:
    case FrameKind::segment:
      return arrived(payload.size());
    case FrameKind::received:
      return receivedReport(metadata);
    case FrameKind::fetch:
      if (atServer()) return receivedFetch(metadata);
      break;
    default:
      break;
  }
  throw ProtocolError("unexpected-message", std::string(frameKindName(header.kind)) +
                                                " is not allowed in a probe session");
}

void ProbeLink::arrived(std::size_t bytes) {
  received_ += bytes;
  ++progress_;
  if (received_ < in_.bytes) return;
  const SteadyTime at = now();
  open_ = false;
  in_.busy = false;
  wire::Received received;
  setKey(in_.number, *received.mutable_key());
  received.set_wire_seconds(secondsBetween(opened_, at));
  connection_.outbox().pushControl(FrameKind::received, received.SerializeAsString());
  connection_.wake();
  finished_({atServer(), in_.bytes, received.wire_seconds(), at});
}

void ProbeLink::receivedFetch(std::span<const std::byte> metadata) {
  const auto fetch = parseMetadata<wire::Fetch>(FrameKind::fetch, metadata);
  if (fetch.flow() != kName) {
    throw ProtocolError("unexpected-message",
                        "a Fetch in a probe session requests a flow other than 'probe'");
  }
  checkSize(fetch.bytes());
  // A client that acknowledges a stream too early clears out_.busy, so streams that the socket has
  // not accepted yet are counted too.
  if (out_.busy || unwritten_ > 1) {
    throw ProtocolError("too-many-in-flight", "a Fetch arrived before the last one was answered");
  }
  push(fetch.bytes());
}

void ProbeLink::receivedReport(std::span<const std::byte> metadata) {
  const auto received = parseMetadata<wire::Received>(FrameKind::received, metadata);
  const double seconds = checkedSeconds(received.wire_seconds());
  if (!out_.busy || !isKey(received.key(), out_.number)) {
    throw ProtocolError("unexpected-message", "a Received arrived for something that was not sent");
  }
  out_.busy = false;
  finished_({!atServer(), out_.bytes, seconds, now()});
}

}  // namespace cleave
