// Fuzz target: bytes that a connection receives. The first byte of an input selects the
// connection's state. Parsing headers and metadata, and checking limits and checksums, may throw
// only ProtocolError. Accepted data must be the same after writing and reading it again.
#include <algorithm>
#include <cstring>

#include "common/link/wire_messages.h"
#include "common/net/connection_messages.h"
#include "common/net/frames/frame.h"
#include "tests/fuzz/seeds.h"

using namespace cleave;
using namespace cleave::fuzz;

namespace {

std::span<const std::byte> viewOf(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Checks that metadata is the same after writing and reading it again.
template <typename Read>
void checkStable(std::span<const std::byte> metadata, Read read) {
  const std::string once = toWire(read(metadata));
  if (toWire(read(viewOf(once))) != once) find("metadata changes when read and written again");
}

void readTensor(std::span<const std::byte> metadata) {
  const auto tensor = parseMetadata<wire::Tensor>(FrameKind::tensor, metadata);
  const Key key = keyFromWire(tensor.key());
  wire::Key again;
  toWire(key, again);
  if (keyFromWire(again) != key) find("a key changes when read and written again");
  const TensorSpec spec = specFromWire(tensor.spec());
  if (spec.shape.size() > kMaxRank) find("a shape of too many dimensions");
  checkedSeconds(tensor.encode_seconds());
  checkedSeconds(tensor.queue_seconds());
}

void readMetadata(FrameKind kind, std::span<const std::byte> metadata) {
  switch (kind) {
    case FrameKind::hello:
      parseMetadata<wire::Hello>(kind, metadata);
      break;
    case FrameKind::helloOk:
      parseMetadata<wire::HelloOk>(kind, metadata);
      break;
    case FrameKind::roster:
      parseMetadata<wire::Roster>(kind, metadata);
      break;
    case FrameKind::refused:
    case FrameKind::failure: {
      const RunError error = errorFromFailure(metadata);
      const auto isControl = [](char c) { return c >= 0 && c < ' '; };
      if (std::any_of(error.what(), error.what() + std::strlen(error.what()), isControl))
        find("a peer's text has control characters");
      break;
    }
    case FrameKind::bye:
      reasonFromBye(metadata);
      break;
    case FrameKind::ping:
      clockOfPong(viewOf(pongMetadata(metadata)));
      break;
    case FrameKind::pong:
      if (!(clockOfPong(metadata).roundTripSeconds >= 0)) find("a round trip below 0");
      break;
    case FrameKind::tensor:
      readTensor(metadata);
      break;
    case FrameKind::segment:
      parseMetadata<wire::Segment>(kind, metadata);
      break;
    case FrameKind::received:
      checkStable(metadata, receivedFromWire);
      break;
    case FrameKind::bodyDone:
      checkStable(metadata, bodyDoneFromWire);
      break;
    case FrameKind::step:
      checkStable(metadata, decisionFromWire);
      break;
    case FrameKind::stepOk:
      checkStable(metadata, stepOkFromWire);
      break;
    case FrameKind::fetch:
      checkStable(metadata, fetchFromWire);
      break;
    case FrameKind::resume:
      checkStable(metadata, resumeFromWire);
      break;
    case FrameKind::saved:
      checkStable(metadata, savedFromWire);
      break;
    case FrameKind::drain:
      checkStable(metadata, drainFromWire);
      break;
    case FrameKind::samples:
      checkStable(metadata, sampleNumbersFromWire);
      break;
  }
}

// Removes a frame from the front of `bytes`. Returns false if the frame is incomplete.
bool readFrame(std::span<const std::byte>& bytes, ConnectionState state) {
  checkMagic(bytes.first(std::min(bytes.size(), kHeaderBytes)));
  if (bytes.size() < kHeaderBytes) return false;
  const FrameHeader header = decodeHeader(bytes.first<kHeaderBytes>());
  const HeaderBytes again = encodeHeader(header);
  if (!std::ranges::equal(again, bytes.first(kHeaderBytes)))
    find("a header changes when written again");
  checkFrame(header, state);
  if (header.metadataBytes > kMaxMetadataBytes || header.payloadBytes > kMaxSegmentBytes)
    find("a frame above its caps is accepted");
  const std::size_t size = kHeaderBytes + header.metadataBytes + header.payloadBytes;
  if (bytes.size() < size) return false;
  const auto metadata = bytes.subspan(kHeaderBytes, header.metadataBytes);
  const auto payload = bytes.subspan(kHeaderBytes + header.metadataBytes, header.payloadBytes);
  if ((header.flags & kFlagChecksum) != 0)
    frameChecksum(std::span(again).first<24>(), metadata, payload);
  readMetadata(header.kind, metadata);
  bytes = bytes.subspan(size);
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  silenceProtobuf();
  constexpr std::array kStates = {ConnectionState::awaitingHello, ConnectionState::awaitingHelloOk,
                                  ConnectionState::open};
  const ConnectionState state = kStates[data[0] % kStates.size()];
  std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  try {
    while (!bytes.empty() && readFrame(bytes, state)) {
    }
  } catch (const ProtocolError&) {
  }
  return 0;
}

namespace {

Bytes frame(unsigned state, FrameKind kind, const std::string& metadata,
            std::size_t payloadBytes = 0) {
  FrameHeader header;
  header.kind = kind;
  header.metadataBytes = static_cast<std::uint32_t>(metadata.size());
  header.payloadBytes = static_cast<std::uint32_t>(payloadBytes);
  header.stream = isTensorData(kind) ? 1 : 0;
  const HeaderBytes start = encodeHeader(header);
  Bytes bytes(1 + kHeaderBytes + metadata.size() + payloadBytes);
  bytes[0] = static_cast<std::byte>(state);
  std::ranges::copy(start, bytes.begin() + 1);
  std::ranges::copy(viewOf(metadata), bytes.begin() + 1 + kHeaderBytes);
  return bytes;
}

std::string helloMetadata() {
  wire::Hello hello;
  hello.set_kind(wire::Hello::TRIAL);
  hello.set_run_id("run-1");
  hello.set_generation(1);
  hello.add_connections(7);
  hello.mutable_run_spec()->set_fields(R"({"train.schedule": "priority"})");
  return hello.SerializeAsString();
}

std::string tensorMetadata() {
  wire::Tensor tensor;
  toWire(Key{Phase::train, 3, 1, activationAt(0)}, *tensor.mutable_key());
  toWire(TensorSpec{DType::f32, {4, 8}, MemoryOrder::contiguous}, *tensor.mutable_spec());
  tensor.set_codec("none");
  tensor.set_encoded_bytes(128);
  tensor.set_micro_batches(4);
  tensor.set_samples(16);
  return tensor.SerializeAsString();
}

}  // namespace

std::vector<Seed> cleave::fuzz::seeds() {
  const RunError error("bad-run", "it went\nwrong", "fix it");
  const Key key{Phase::train, 3, 1, gradientAt(0)};
  wire::HelloOk ok;
  ok.set_software("cleave");
  wire::Roster roster;
  roster.add_missing("clinic-b");
  wire::Segment segment;
  segment.set_offset(64);
  segment.set_sha256(std::string(32, 'x'));
  return {
      {"Hello", frame(0, FrameKind::hello, helloMetadata())},
      {"HelloOk", frame(1, FrameKind::helloOk, ok.SerializeAsString())},
      {"Roster", frame(1, FrameKind::roster, roster.SerializeAsString())},
      {"Refused", frame(1, FrameKind::refused, failureMetadata(error))},
      {"Failure", frame(2, FrameKind::failure, failureMetadata(error))},
      {"Bye", frame(2, FrameKind::bye, byeMetadata("done"))},
      {"Ping", frame(2, FrameKind::ping, pingMetadata())},
      {"Pong", frame(2, FrameKind::pong, pongMetadata(viewOf(pingMetadata())))},
      {"Tensor", frame(2, FrameKind::tensor, tensorMetadata(), 128)},
      {"Segment", frame(2, FrameKind::segment, segment.SerializeAsString(), 64)},
      {"Received", frame(2, FrameKind::received, toWire(ReceivedReport{key, 0.1, 0.2}))},
      {"BodyDone", frame(2, FrameKind::bodyDone, toWire(BodyDone{3, {2, true}}))},
      {"Step", frame(2, FrameKind::step, toWire(StepDecision{3, true, {0.1}, 1, 1, false, {}}))},
      {"StepOk", frame(2, FrameKind::stepOk, toWire(StepOk{3}))},
      {"Fetch", frame(2, FrameKind::fetch, toWire(Fetch{kWeightsBody}))},
      {"Resume", frame(2, FrameKind::resume, toWire(Resume{3}))},
      {"Saved",
       frame(2, FrameKind::saved, toWire(Saved{3, std::string(32, 'x'), 100, 0.1, "", "", ""}))},
      {"Drain", frame(2, FrameKind::drain, toWire(Drain{30}))},
      {"Samples", frame(2, FrameKind::samples, toWire(SampleNumbers{3, 0, {5, 7}}))}};
}
