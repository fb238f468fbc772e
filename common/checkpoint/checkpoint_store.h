// The checkpoints of one run on one side, and the run's generation:
//
//   RUN/generation                    the newest one that this side has seen
//   RUN/checkpoints/N.safetensors     this side's state after step N
//   RUN/checkpoints/N.json            its size and SHA-256; written last, completes a checkpoint
//
// One thread at a time. All functions may throw RunError "cannot-read" or "cannot-write".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/checkpoint/files.h"

namespace cleave {

struct CheckpointInfo {
  std::uint64_t step = 0;
  std::uint64_t bytes = 0;
  std::string sha256;  // of the file, 32 bytes
  // Of the machine that computed it: on another one, the next steps may not be bit-identical.
  std::string fingerprint;
};

struct Checkpoint : CheckpointInfo {
  std::string file;
};

class CheckpointStore {
 public:
  // `runFolder` exists. `files` is borrowed.
  CheckpointStore(Files& files, std::string runFolder);

  // Durable on return. Replaces a checkpoint of the same step. If it fails, it leaves no files
  // behind.
  CheckpointInfo write(std::uint64_t step, std::string_view file, const std::string& fingerprint);
  // All that are complete, newest first. Their files are not read.
  std::vector<CheckpointInfo> list() const;
  // The file of a checkpoint, after checking its SHA-256. Throws RunError "bad-checkpoint" if it is
  // missing or damaged.
  std::string read(const CheckpointInfo& info) const;
  // The checkpoint with this digest, if it is present and undamaged.
  std::optional<Checkpoint> find(std::uint64_t step, const std::string& sha256) const;

  // Remove checkpoints and the remains of interrupted writes. They return the bytes of the removed
  // files.
  std::uint64_t removeExcept(const std::vector<std::uint64_t>& steps);
  std::uint64_t removeAll() { return removeExcept({}); }
  std::uint64_t removeStep(std::uint64_t step);
  std::uint64_t removeIncomplete();

  std::uint64_t generation() const;  // 0: none so far
  // Durable on return.
  void setGeneration(std::uint64_t generation);

 private:
  std::string pathOf(std::uint64_t step, const char* extension) const;

  Files& files_;
  const std::string runFolder_;
  const std::string folder_;  // of the checkpoints
};

// SHA-256, 32 bytes.
std::string sha256Of(std::string_view bytes);
std::string hexOf(std::string_view bytes);
// Throws RunError "bad-checkpoint" if it is not hexadecimal.
std::string bytesOfHex(const std::string& hex);

}  // namespace cleave
