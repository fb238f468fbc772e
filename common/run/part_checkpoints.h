// Writes the checkpoints of one part of a run, on either side.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/checkpoint/checkpoint_store.h"
#include "common/checkpoint/samples_base.h"
#include "common/run/checkpoint_file.h"

namespace cleave {

// A copy of a part's state after the step `state.engine.applied`.
struct PartSnapshot {
  PartState state;
  std::vector<std::byte> stage;      // a safetensors file
  std::exception_ptr error;          // why the codecs' states are missing; null: they are not
  std::vector<SamplesFile> samples;  // the files that `state.codecs` continues; see SamplesBase
};

class PartCheckpoints {
 public:
  PartCheckpoints(CheckpointStore store, std::string fingerprint)
      : store_(std::move(store)), fingerprint_(std::move(fingerprint)) {}

  // Any thread. The checkpoint relative to which the kept samples of the next snapshot are saved;
  // step 0: none. `committed`: the steps whose checkpoints remain.
  CheckpointInfo baseOfSamples(const std::vector<std::uint64_t>& committed) {
    return base_.choose(committed);
  }
  // Any thread. Call after the part has been restored from this checkpoint.
  void continued(const CheckpointInfo& from) { base_.add(from); }

  // One thread at a time. The checkpoint is durable when this returns. `reserve` is called with the
  // bytes of its files before they are written, and may throw. Throws `snapshot.error`, and
  // RunError "cannot-write".
  CheckpointInfo write(const PartSnapshot& snapshot,
                       const std::function<void(std::uint64_t bytes)>& reserve = nullptr);
  // One thread at a time.
  CheckpointStore& store() { return store_; }
  const CheckpointStore& store() const { return store_; }

  const std::string& fingerprint() const { return fingerprint_; }

 private:
  CheckpointStore store_;
  const std::string fingerprint_;
  SamplesBase base_;
};

}  // namespace cleave
