#include "stage/messages.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

namespace cleave {

bool sendStageMessage(int socket, const google::protobuf::MessageLite& message) {
  const std::string text = message.SerializeAsString();
  if (text.size() > kMaxStageMessage) return false;
  // write() is the only call that a confined process may use. It has SIGPIPE blocked.
  return ::write(socket, text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

StageRead readStageMessage(int socket, google::protobuf::MessageLite& message) {
  // On the heap, because a thread's stack may be small, and kept, because clearing it takes time.
  thread_local std::string text(kMaxStageMessage, '\0');
  ssize_t size = 0;
  do {
    size = ::read(socket, text.data(), text.size());
  } while (size < 0 && errno == EINTR);
  if (size < 0 && errno == EAGAIN) return StageRead::nothing;
  const bool isValid = size > 0 && message.ParseFromArray(text.data(), static_cast<int>(size));
  return isValid ? StageRead::message : StageRead::end;
}

void toWire(const TensorSpec& spec, std::size_t offset, wire::StageTensor& tensor) {
  tensor.set_dtype(static_cast<std::uint32_t>(spec.dtype));
  tensor.set_order(static_cast<std::uint32_t>(spec.order));
  for (const std::int64_t size : spec.shape) tensor.add_shape(size);
  tensor.set_offset(offset);
}

TensorSpec specFromWire(const wire::StageTensor& tensor) {
  return {static_cast<DType>(tensor.dtype()),
          {tensor.shape().begin(), tensor.shape().end()},
          static_cast<MemoryOrder>(tensor.order())};
}

}  // namespace cleave
