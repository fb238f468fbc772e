#include "common/net/frames/frame.h"

#include <xxhash.h>
#ifdef CLEAVE_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>  // renames what <xxhash.h> declares
#endif

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <new>
#include <string>
#include <utility>

namespace cleave {
namespace {

// Offsets in the header; proto/PROTOCOL.md has the same table.
constexpr std::size_t kVersionAt = 4;
constexpr std::size_t kKindAt = 5;
constexpr std::size_t kFlagsAt = 6;
constexpr std::size_t kMetadataBytesAt = 8;
constexpr std::size_t kPayloadBytesAt = 12;
constexpr std::size_t kStreamAt = 16;
constexpr std::size_t kChecksumAt = 24;
static_assert(kChecksumAt + sizeof(std::uint64_t) == kHeaderBytes);

constexpr std::size_t kMaxShownBytes = 16;  // bytes of a foreign protocol that errors show

// Writes and reads little-endian on any machine.
template <typename Integer>
void store(std::span<std::byte> bytes, std::size_t at, Integer value) {
  for (std::size_t j = 0; j < sizeof(Integer); ++j) {
    bytes[at + j] = static_cast<std::byte>(value >> (8 * j));
  }
}

template <typename Integer>
Integer load(std::span<const std::byte> bytes, std::size_t at) {
  Integer value = 0;
  for (std::size_t j = 0; j < sizeof(Integer); ++j) {
    value |= static_cast<Integer>(static_cast<Integer>(bytes[at + j]) << (8 * j));
  }
  return value;
}

// Names a foreign protocol by its first bytes.
std::string describeForeign(std::span<const std::byte> start) {
  std::string text;
  for (const std::byte byte : start.first(std::min(start.size(), kMaxShownBytes))) {
    const char c = static_cast<char>(byte);
    if (c < ' ' || c > '~') break;
    text += c;
  }
  for (const auto& [prefix, program] : {std::pair{"HTTP/", "an HTTP server"},
                                        {"GET ", "an HTTP client"},
                                        {"POST ", "an HTTP client"},
                                        {"HEAD ", "an HTTP client"},
                                        {"PUT ", "an HTTP client"},
                                        {"PRI * ", "an HTTP client"},
                                        {"SSH-", "an SSH server or client"}}) {
    if (text.starts_with(prefix)) {
      return std::string("the peer does not speak Cleave: it is ") + program;
    }
  }
  if (!text.empty()) return "the peer does not speak Cleave: it sent \"" + text + "\"";
  std::string hex;
  for (const std::byte byte : start.first(std::min(start.size(), kMagic.size()))) {
    char digits[4];
    std::snprintf(digits, sizeof digits, " %02x", static_cast<unsigned>(byte));
    hex += digits;
  }
  return "the peer does not speak Cleave: its bytes begin with" + hex;
}

std::string named(FrameKind kind) { return std::string(frameKindName(kind)); }

void checkState(FrameKind kind, ConnectionState state) {
  const char* wanted = nullptr;
  switch (state) {
    case ConnectionState::awaitingHello:
      if (kind != FrameKind::hello) wanted = "instead of a Hello";
      break;
    case ConnectionState::awaitingHelloOk:
      if (kind != FrameKind::helloOk && kind != FrameKind::refused && kind != FrameKind::failure &&
          kind != FrameKind::roster) {
        wanted = "instead of the answer to a Hello";
      }
      break;
    case ConnectionState::open:
      if (kind == FrameKind::hello || kind == FrameKind::helloOk || kind == FrameKind::refused) {
        wanted = "after the handshake";
      }
      break;
  }
  if (wanted) throw ProtocolError("unexpected-frame", named(kind) + " arrived " + wanted);
}

void checkLength(FrameKind kind, const char* part, std::size_t bytes, std::size_t max) {
  if (bytes <= max) return;
  throw ProtocolError("frame-too-large", named(kind) + " claims " + std::to_string(bytes) +
                                             " bytes of " + part + "; at most " +
                                             std::to_string(max) + " are allowed here");
}

}  // namespace

std::string_view frameKindName(FrameKind kind) {
  switch (kind) {
    case FrameKind::hello:
      return "Hello";
    case FrameKind::helloOk:
      return "HelloOk";
    case FrameKind::refused:
      return "Refused";
    case FrameKind::failure:
      return "Failure";
    case FrameKind::bye:
      return "Bye";
    case FrameKind::ping:
      return "Ping";
    case FrameKind::pong:
      return "Pong";
    case FrameKind::tensor:
      return "Tensor";
    case FrameKind::segment:
      return "Segment";
    case FrameKind::received:
      return "Received";
    case FrameKind::bodyDone:
      return "BodyDone";
    case FrameKind::step:
      return "Step";
    case FrameKind::stepOk:
      return "StepOk";
    case FrameKind::fetch:
      return "Fetch";
    case FrameKind::resume:
      return "Resume";
    case FrameKind::saved:
      return "Saved";
    case FrameKind::drain:
      return "Drain";
    case FrameKind::samples:
      return "Samples";
    case FrameKind::roster:
      return "Roster";
  }
  return {};  // no frame kind
}

HeaderBytes encodeHeader(const FrameHeader& header) {
  HeaderBytes bytes;
  std::transform(kMagic.begin(), kMagic.end(), bytes.begin(),
                 [](std::uint8_t c) { return static_cast<std::byte>(c); });
  store(bytes, kVersionAt, kWireVersion);
  store(bytes, kKindAt, static_cast<std::uint8_t>(header.kind));
  store(bytes, kFlagsAt, header.flags);
  store(bytes, kMetadataBytesAt, header.metadataBytes);
  store(bytes, kPayloadBytesAt, header.payloadBytes);
  store(bytes, kStreamAt, header.stream);
  store(bytes, kChecksumAt, header.checksum);
  return bytes;
}

void checkMagic(std::span<const std::byte> start) {
  const auto magic = start.first(std::min(start.size(), kMagic.size()));
  const bool fits = std::equal(magic.begin(), magic.end(), kMagic.begin(),
                               [](std::byte a, std::uint8_t b) { return a == std::byte{b}; });
  if (fits) return;
  if (start.size() >= 2 && start[0] == std::byte{0x16} && start[1] == std::byte{0x03}) {
    throw NotTls("the peer uses TLS, but this side does not",
                 "set tls.enabled on both sides, or on neither");
  }
  throw NotCleave(describeForeign(start));
}

FrameHeader decodeHeader(std::span<const std::byte, kHeaderBytes> bytes) {
  checkMagic(bytes);
  const auto version = load<std::uint8_t>(bytes, kVersionAt);
  if (version != kWireVersion) {
    throw ProtocolError("version-mismatch",
                        "the peer's frames have wire version " + std::to_string(version) +
                            ", this side uses version " + std::to_string(kWireVersion),
                        "install the same version of Cleave on both machines");
  }
  FrameHeader header;
  const auto kind = load<std::uint8_t>(bytes, kKindAt);
  header.kind = static_cast<FrameKind>(kind);
  if (frameKindName(header.kind).empty()) {
    throw ProtocolError("unknown-frame", "a frame has the unknown kind " + std::to_string(kind));
  }
  header.flags = load<std::uint16_t>(bytes, kFlagsAt);
  header.metadataBytes = load<std::uint32_t>(bytes, kMetadataBytesAt);
  header.payloadBytes = load<std::uint32_t>(bytes, kPayloadBytesAt);
  header.stream = load<std::uint64_t>(bytes, kStreamAt);
  header.checksum = load<std::uint64_t>(bytes, kChecksumAt);
  if ((header.flags & ~kFlagChecksum) != 0) {
    throw ProtocolError("bad-frame", named(header.kind) + " has the unknown flags " +
                                         std::to_string(header.flags & ~kFlagChecksum));
  }
  // Otherwise one damaged bit in the flags would disable the check.
  if (header.flags == 0 && header.checksum != 0) {
    throw ProtocolError("bad-frame", named(header.kind) + " has a checksum, but not its flag");
  }
  return header;
}

std::uint64_t frameChecksum(std::span<const std::byte, 24> headerStart,
                            std::span<const std::byte> metadata,
                            std::span<const std::byte> payload) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  if (!state) throw std::bad_alloc();
  XXH3_64bits_reset(state.get());
  XXH3_64bits_update(state.get(), headerStart.data(), headerStart.size());
  XXH3_64bits_update(state.get(), metadata.data(), metadata.size());
  XXH3_64bits_update(state.get(), payload.data(), payload.size());
  return XXH3_64bits_digest(state.get());
}

void encodeHead(FrameKind kind, std::uint64_t stream, std::string_view metadata,
                std::span<const std::byte> payload, bool checksum, std::vector<std::byte>& head) {
  FrameHeader header;
  header.kind = kind;
  header.stream = stream;
  header.metadataBytes = static_cast<std::uint32_t>(metadata.size());
  header.payloadBytes = static_cast<std::uint32_t>(payload.size());
  const auto metadataBytes = std::as_bytes(std::span(metadata));
  if (checksum) {
    header.flags = kFlagChecksum;
    const HeaderBytes start = encodeHeader(header);
    header.checksum = frameChecksum(std::span(start).first<24>(), metadataBytes, payload);
  }
  const HeaderBytes bytes = encodeHeader(header);
  head.assign(bytes.begin(), bytes.end());
  head.insert(head.end(), metadataBytes.begin(), metadataBytes.end());
}

void checkFrame(const FrameHeader& header, ConnectionState state) {
  checkState(header.kind, state);
  const bool tensorData = isTensorData(header.kind);
  if (tensorData != (header.stream != 0)) {
    throw ProtocolError("bad-frame", named(header.kind) + " has the stream number " +
                                         std::to_string(header.stream));
  }
  std::size_t maxMetadata = kMaxMetadataBytes;
  if (tensorData) maxMetadata = kMaxTensorMetadataBytes;
  if (state != ConnectionState::open) maxMetadata = kMaxHandshakeBytes - kHeaderBytes;
  checkLength(header.kind, "metadata", header.metadataBytes, maxMetadata);
  checkLength(header.kind, "payload", header.payloadBytes, tensorData ? kMaxSegmentBytes : 0);
}

std::size_t segmentBytesFor(double rate) {
  constexpr double kSegmentSeconds = 2e-3;
  return static_cast<std::size_t>(
      std::clamp<double>(std::round(rate * kSegmentSeconds), kMinSegmentBytes, kMaxSegmentBytes));
}

}  // namespace cleave
