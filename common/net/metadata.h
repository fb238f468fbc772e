// The one place that parses a peer's protobuf messages and makes their text safe.
#pragma once

#include <cstddef>
#include <span>

#include "common/net/frame.h"

namespace google::protobuf {
class Message;
}

namespace cleave {

// Stops protobuf from writing a line to stderr for every text that is not UTF-8, with which a peer
// could fill the log. For the whole process; may be called again.
void silenceProtobuf();

// Makes every text of the message printable (common/core/printable.h): in nested and repeated
// fields, in the keys and values of maps. Fields of the type `bytes` are not texts.
void makePrintable(google::protobuf::Message& message);

// Reads the metadata of a frame of `kind` into `message`, with all texts printable. Throws
// ProtocolError "bad-metadata".
void parseInto(google::protobuf::Message& message, FrameKind kind,
               std::span<const std::byte> metadata);

template <typename Proto>
Proto parseMetadata(FrameKind kind, std::span<const std::byte> metadata) {
  Proto message;
  parseInto(message, kind, metadata);
  return message;
}

}  // namespace cleave
