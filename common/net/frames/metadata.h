// The only code that parses a peer's protobuf messages and makes their text printable.
#pragma once

#include <cstddef>
#include <span>

#include "common/net/frames/frame.h"

namespace google::protobuf {
class Message;
}

namespace cleave {

// Stops protobuf from writing a line to stderr for every string that is not UTF-8: a peer could
// fill the log with such lines. Process-wide; may be called again.
void silenceProtobuf();

// Makes every string of the message printable (common/core/printable.h), including nested and
// repeated fields and the keys and values of maps. Leaves `bytes` fields alone.
void makePrintable(google::protobuf::Message& message);

// Parses the metadata of a frame of `kind` into `message`, with all strings printable. Throws
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
