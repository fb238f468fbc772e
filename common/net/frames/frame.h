// The frame: header, protobuf metadata, raw payload. Pure functions on spans; proto/PROTOCOL.md is
// the specification.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/core/error.h"

namespace cleave {

enum class FrameKind : std::uint8_t {
  hello = 1,
  helloOk = 2,
  refused = 3,
  failure = 4,
  bye = 5,
  ping = 6,
  pong = 7,
  tensor = 8,
  segment = 9,
  received = 10,
  bodyDone = 11,
  step = 12,
  stepOk = 13,
  fetch = 14,
  resume = 15,
  saved = 16,
  drain = 17,
  samples = 18,
  roster = 19,
};
std::string_view frameKindName(FrameKind kind);  // "Hello"
// Tensor and Segment: frames with a stream and a payload. All others are control frames.
inline bool isTensorData(FrameKind kind) {
  return kind == FrameKind::tensor || kind == FrameKind::segment;
}

inline constexpr std::array<std::uint8_t, 4> kMagic = {'C', 'L', 'V', 'E'};
// The revision of the whole protocol, in every header. Each change of the protocol increases it,
// and a peer with another revision is refused.
inline constexpr std::uint8_t kWireVersion = 6;
inline constexpr std::size_t kHeaderBytes = 32;
// Maximum size of a frame, header, metadata and payload together, before the handshake is complete.
inline constexpr std::size_t kMaxHandshakeBytes = 64 << 10;
inline constexpr std::size_t kMaxMetadataBytes = 64 << 10;
inline constexpr std::size_t kMaxTensorMetadataBytes = 4 << 10;  // metadata of Tensor and Segment
inline constexpr std::size_t kMaxSegmentBytes = 1 << 20;
inline constexpr std::size_t kMinSegmentBytes = 64 << 10;
// The segment size for a link of `rate` bytes per second: 2 ms of data, clamped to
// [kMinSegmentBytes, kMaxSegmentBytes].
std::size_t segmentBytesFor(double rate);

// flags, bit 0: `checksum` holds; never set under TLS.
inline constexpr std::uint16_t kFlagChecksum = 1;

struct FrameHeader {
  FrameKind kind = FrameKind::hello;
  std::uint16_t flags = 0;
  std::uint32_t metadataBytes = 0;
  std::uint32_t payloadBytes = 0;
  std::uint64_t stream = 0;    // 0 except in Tensor and Segment
  std::uint64_t checksum = 0;  // XXH3-64 of header bytes 0…23, metadata, payload
};

using HeaderBytes = std::array<std::byte, kHeaderBytes>;

HeaderBytes encodeHeader(const FrameHeader& header);

// One side uses TLS, the other does not.
class NotTls : public ProtocolError {
 public:
  NotTls(const std::string& sentence, std::string hint)
      : ProtocolError(ErrorKind::usage, "not-tls", sentence, std::move(hint)) {
    key_ = "tls.enabled";
  }
};

// The peer is another program, for which a Failure would be noise.
class NotCleave : public ProtocolError {
 public:
  explicit NotCleave(const std::string& sentence)
      : ProtocolError("not-cleave", sentence,
                      "check that host and port are those of a Cleave program") {}
};

// Throws NotTls or NotCleave unless `start` can be the start of a Cleave frame. `start` holds the
// first bytes of a header, or as many as have arrived. Detects a wrong port at the first byte, even
// if the peer's greeting is shorter than a header.
void checkMagic(std::span<const std::byte> start);

// Throws ProtocolError: wrong magic ("not-cleave"), version, unknown kind, unknown flags, a
// checksum without its flag. Does not check lengths.
FrameHeader decodeHeader(std::span<const std::byte, kHeaderBytes> bytes);

std::uint64_t frameChecksum(std::span<const std::byte, 24> headerStart,
                            std::span<const std::byte> metadata,
                            std::span<const std::byte> payload);

// Encodes header and metadata, which are sent before the payload, with or without a checksum of all
// three. Reuses the memory of `head`.
void encodeHead(FrameKind kind, std::uint64_t stream, std::string_view metadata,
                std::span<const std::byte> payload, bool checksum, std::vector<std::byte>& head);

enum class ConnectionState : std::uint8_t { awaitingHello, awaitingHelloOk, open };

// Throws ProtocolError if `kind` is not allowed in `state`, or if a length exceeds its cap. Must be
// called before any allocation.
void checkFrame(const FrameHeader& header, ConnectionState state);

}  // namespace cleave
