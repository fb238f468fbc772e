// The file calls of checkpoints and of stored weights. Tests replace them with a disk that fails,
// or that loses data that is not yet durable. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/core/error.h"

namespace cleave {

class Files {
 public:
  virtual ~Files() = default;
  // The whole file; nothing if there is none. Throws RunError "cannot-read".
  virtual std::optional<std::string> read(const std::string& path) = 0;
  // Atomic, and durable on return: after a crash the file has either its old or its new content.
  // Throws RunError "cannot-write".
  virtual void write(const std::string& path, std::string_view bytes) = 0;
  // Does nothing if there is no such file. Throws RunError "cannot-write".
  virtual void remove(const std::string& path) = 0;
  // Fills `into` with the file's bytes from `offset` on. Returns false if there is no such file, or
  // it has fewer bytes. Throws RunError "cannot-read".
  virtual bool readAt(const std::string& path, std::uint64_t offset, std::span<std::byte> into) = 0;
  // Sets the file's changeTime() to the current time, if possible.
  virtual void touch(const std::string& path) = 0;
  // Nanoseconds since 1970 of the last write or touch(); 0 if there is no such file.
  virtual std::int64_t changeTime(const std::string& path) = 0;
  // In bytes; 0 if there is no such file.
  virtual std::uint64_t size(const std::string& path) = 0;
  // The names of the files in a folder, sorted; none if there is no such folder.
  virtual std::vector<std::string> list(const std::string& folder) = 0;
  // Also makes the parents. Throws RunError "cannot-write".
  virtual void makeFolder(const std::string& folder) = 0;
};

// The files of this machine.
Files& diskFiles();

}  // namespace cleave
