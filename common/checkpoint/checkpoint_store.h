// The checkpoints of one run on one side, and the run's connections:
//
//   RUN/connections                  RunConnections, see there
//   RUN/checkpoints/N.samples        kept samples that changed since an earlier checkpoint
//   RUN/checkpoints/N.safetensors    the rest of this side's state after step N
//   RUN/checkpoints/N.json           sizes and SHA-256 of these files; written last
//
// The samples of a checkpoint are those of several files, each of which replaces samples of the
// files before it. A file remains until no checkpoint needs it.
//
// Not thread-safe. All functions may throw RunError "run-unreadable" or "cannot-write".
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/checkpoint/files.h"
#include "common/checkpoint/run_connections.h"

namespace cleave {

// A file with kept samples. Its name has the step of the checkpoint that it was written with.
struct SamplesFile {
  std::uint64_t step = 0;
  std::uint64_t bytes = 0;
  std::string sha256;
};

struct CheckpointInfo {
  std::uint64_t step = 0;
  std::uint64_t bytes = 0;                // of the .safetensors file
  std::vector<SamplesFile> samples = {};  // oldest first
  // Identifies the contents, 32 bytes: the digest of the .safetensors file, or, if there are
  // samples, of this digest and those of the samples' files.
  std::string sha256 = {};
  // Identifies the software and hardware that computed the checkpoint (fingerprintOf()): with
  // another fingerprint, the next steps may not be bit-identical.
  std::string fingerprint = {};

  std::uint64_t totalBytes() const;  // of all its files
};

struct Checkpoint : CheckpointInfo {
  std::string file;
};

// The samples of a new checkpoint: those of earlier files, replaced by those of a new one.
struct CheckpointSamples {
  std::vector<SamplesFile> earlier = {};
  std::span<const HeldBytes> file = {};  // contents of the new file; empty: there is none
};

class CheckpointStore {
 public:
  // `runFolder` must exist. `files` is borrowed.
  CheckpointStore(Files& files, std::string runFolder);

  // The checkpoint is durable when this returns. Replaces a checkpoint of the same step. A failed
  // write leaves no files behind.
  CheckpointInfo write(std::uint64_t step, std::string_view file, const std::string& fingerprint,
                       const CheckpointSamples& samples = {});
  // All complete checkpoints, newest first. Does not read the .safetensors files.
  std::vector<CheckpointInfo> list() const;
  // Returns the contents of a checkpoint's file without its samples. Throws RunError
  // "bad-checkpoint" if the file is missing or its SHA-256 does not match.
  std::string read(const CheckpointInfo& info) const;
  // The same for a file with samples, which is mapped (Files::view()) after all of it was read
  // once.
  HeldBytes read(const SamplesFile& samples) const;
  // The checkpoint with this digest, if it is present and undamaged, including its samples.
  std::optional<Checkpoint> find(std::uint64_t step, const std::string& sha256) const;

  // The remove functions delete checkpoints and the remains of interrupted writes. They return the
  // total size of the deleted files in bytes.
  std::uint64_t removeExcept(const std::vector<std::uint64_t>& steps);
  std::uint64_t removeAll() { return removeExcept({}); }
  std::uint64_t removeStep(std::uint64_t step);
  std::uint64_t removeAfter(std::uint64_t step);  // checkpoints of later steps
  std::uint64_t removeIncomplete();

  // Generation 0: there were no connections; nullopt: the file is damaged.
  std::optional<RunConnections> connections() const;
  // The connections are durable when this returns.
  void setConnections(const RunConnections& connections);

 private:
  std::string pathOf(std::uint64_t step, const char* extension) const;
  void verify(const SamplesFile& samples) const;
  // Nullopt: the record is damaged or missing. Throws RunError "run-unreadable".
  std::optional<CheckpointInfo> readRecord(std::uint64_t step) const;
  std::uint64_t removeFile(const std::string& path);
  std::uint64_t removeStateOf(std::uint64_t step);  // and its record
  std::uint64_t removeUnusedSamples();

  Files& files_;
  const std::string runFolder_;
  const std::string folder_;  // RUN/checkpoints
  // Step and digest of the files with samples that find() has found intact.
  mutable std::set<std::pair<std::uint64_t, std::string>> intact_;
};

// The reverse of hexOf(). Throws RunError "bad-checkpoint" if it is not hexadecimal.
std::string bytesOfHex(const std::string& hex);

}  // namespace cleave
