// The checkpoints that this process has written or loaded. The kept samples of a new checkpoint can
// be saved relative to one of these (CheckpointSamples): SampleCache records in which step each
// sample was replaced. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "common/checkpoint/checkpoint_store.h"

namespace cleave {

class SamplesBase {
 public:
  void add(const CheckpointInfo& checkpoint);
  // The checkpoint relative to which the next samples should be saved: the newest one of
  // `committed`. Step 0 and no files, so that all samples are saved: this one is not known or has
  // no files with samples, or those after the first one are many, or together as large as the first
  // one. A checkpoint's files thus have at most three times the size of all samples: the first
  // file, changes that are together smaller than it, and the newest file.
  CheckpointInfo choose(const std::vector<std::uint64_t>& committed);

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, CheckpointInfo> known_;  // by step
};

}  // namespace cleave
