#include "common/link/codec_levels.h"

#include "common/core/error.h"

namespace cleave {
namespace {

// Far more batches than are ever in progress.
constexpr std::size_t kMaxBatches = 64;

}  // namespace

void CodecLevels::insert(const Batch& batch, CodecLevel level) {
  levels_[batch] = level;
  if (levels_.size() <= kMaxBatches) return;
  // The oldest batch of the same phase.
  levels_.erase(levels_.lower_bound({batch.first, 0}));
}

void CodecLevels::set(Phase phase, std::uint64_t step, CodecLevel level) {
  const std::lock_guard lock(mutex_);
  insert({phase, step}, level);
}

CodecLevel CodecLevels::of(const Key& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = levels_.find({key.phase, key.step});
  return found == levels_.end() ? CodecLevel::own : found->second;
}

void CodecLevels::arrived(const Key& key, CodecLevel level) {
  const std::lock_guard lock(mutex_);
  const auto found = levels_.find({key.phase, key.step});
  if (found == levels_.end()) return insert({key.phase, key.step}, level);
  if (found->second == level) return;
  throw ProtocolError("bad-tensor", toString(key) + " has another codec level than its batch");
}

}  // namespace cleave
