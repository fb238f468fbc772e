// The messages of proto/stage.proto, over a socket that keeps their boundaries.
#pragma once

#include <google/protobuf/message_lite.h>

#include <cstddef>

#include "common/codec/tensor.h"
#include "proto/stage.pb.h"

namespace cleave {

inline constexpr std::size_t kMaxStageMessage = std::size_t{64} << 10;

// Sends a message; never raises SIGPIPE. Returns false if the other process has ended or does not
// read.
bool sendStageMessage(int socket, const google::protobuf::MessageLite& message);
// Reads the next message; blocks, but no longer than the socket's time limit, if it has one.
enum class StageRead {
  message,
  nothing,  // in that time
  end,      // of the file, or what was read is not valid
};
StageRead readStageMessage(int socket, google::protobuf::MessageLite& message);

void toWire(const TensorSpec& spec, std::size_t offset, wire::StageTensor& tensor);
TensorSpec specFromWire(const wire::StageTensor& tensor);

}  // namespace cleave
