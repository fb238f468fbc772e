// The checkpoints that this process has written or loaded. The rows of a new checkpoint can be
// saved relative to one of these (CheckpointRows): the process knows which rows have changed
// since then. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "common/checkpoint/checkpoint_store.h"

namespace cleave {

// The files with a checkpoint's rows have at most this many times the size of all rows: all rows,
// changes that are together smaller, and those of the last checkpoint.
constexpr int kMaxRowsFactor = 3;

class RowsBase {
 public:
  void add(const CheckpointInfo& checkpoint);
  // The checkpoint relative to which the next rows should be saved: the newest one of `committed`.
  // Nullopt, so that all rows are saved, if none of these is known, or if the files after the first
  // one have become as large as the first one.
  std::optional<CheckpointInfo> choose(const std::vector<std::uint64_t>& committed);

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, CheckpointInfo> known_;  // by step
};

}  // namespace cleave
