// What the server orders from the stage server (zygote.h), over a socket that keeps boundaries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/core/open_file.h"

namespace cleave {

// A fork comes with the stage's socket, its standard error, and its memory for input and output;
// its reply with the process's pidfd. A trial starts a process that confines itself, computes and
// ends, and waits for it; it comes with the process's standard error.
struct StageOrder {
  enum class Kind : std::uint32_t { fork, status, trial } kind = Kind::fork;
  std::uint32_t threads = 0;
  std::uint64_t inputBytes = 0;   // of the shared memory to the stage
  std::uint64_t outputBytes = 0;  // of that from it
  std::uint64_t memoryBytes = 0;  // that the stage may allocate
  std::int32_t process = 0;       // status: a process that has ended
};
struct StageOrderReply {
  std::int32_t error = 0;  // errno
  std::int32_t process = 0;
  std::int32_t status = 0;  // status, trial: as waitpid() returns it
};

template <typename Value>
std::span<std::byte> bytesOf(Value& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

// Sends and receives a value with descriptors. Return false if the other process has ended.
bool sendWithFiles(int socket, std::span<const std::byte> value, std::span<const int> files);
bool receiveWithFiles(int socket, std::span<std::byte> value, std::vector<OpenFile>& files);

inline constexpr std::size_t kMaxOrderFiles = 4;

}  // namespace cleave
