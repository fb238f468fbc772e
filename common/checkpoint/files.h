// File operations for checkpoints and stored weights. Tests replace them with a simulated disk that
// fails, or that loses data that is not yet durable. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/core/error.h"
#include "common/resources/held_bytes.h"

namespace cleave {

class Files {
 public:
  virtual ~Files() = default;
  // Returns the contents of the file; nullopt if it does not exist. Throws RunError
  // "run-unreadable".
  virtual std::optional<std::string> read(const std::string& path) = 0;
  // The same, but the file is mapped instead of copied to memory: if the disk fails later, the
  // process is killed.
  virtual std::optional<HeldBytes> view(const std::string& path) = 0;
  // Writes the pieces, one after the other, as the contents of the file, atomically and durably:
  // after a crash it has either its old or its new contents. Throws RunError "cannot-write".
  virtual void writePieces(const std::string& path, std::span<const std::string_view> pieces) = 0;
  void write(const std::string& path, std::string_view bytes) { writePieces(path, {&bytes, 1}); }
  // Does nothing if the file does not exist. Throws RunError "cannot-write".
  virtual void remove(const std::string& path) = 0;
  // Fills `into` with the file's bytes from `offset` on. Returns false if the file does not exist
  // or is too short. Throws RunError "run-unreadable".
  virtual bool readAt(const std::string& path, std::uint64_t offset, std::span<std::byte> into) = 0;
  // Sets the file's changeTime() to the current time, if possible.
  virtual void touch(const std::string& path) = 0;
  // Time of the last write or touch(), in nanoseconds since 1970; 0 if the file does not exist.
  virtual std::int64_t changeTime(const std::string& path) = 0;
  // The file's size in bytes; 0 if it does not exist.
  virtual std::uint64_t size(const std::string& path) = 0;
  // The names of the files in a folder, sorted; empty if the folder does not exist.
  virtual std::vector<std::string> list(const std::string& folder) = 0;
  // Creates the folder and its parents. Throws RunError "cannot-write".
  virtual void makeFolder(const std::string& folder) = 0;
};

// The real file system.
Files& diskFiles();

}  // namespace cleave
