#include "common/link/codec_levels.h"

#include "common/core/error.h"

namespace cleave {
namespace {

// Per phase; far more batches than are ever in progress.
constexpr std::size_t kMaxBatches = 64;

}  // namespace

void CodecLevels::insert(Phase phase, std::uint64_t step, CodecLevel level) {
  ByStep& levels = levelsIn(phase);
  levels[step] = level;
  if (levels.size() > kMaxBatches) levels.erase(levels.begin());
}

void CodecLevels::set(Phase phase, std::uint64_t step, CodecLevel level) {
  const std::lock_guard lock(mutex_);
  insert(phase, step, level);
}

CodecLevel CodecLevels::of(const Key& key) const {
  const std::lock_guard lock(mutex_);
  const ByStep& levels = levels_[static_cast<std::size_t>(key.phase)];
  const auto found = levels.find(key.step);
  return found == levels.end() ? CodecLevel::own : found->second;
}

void CodecLevels::arrived(const Key& key, CodecLevel level) {
  const std::lock_guard lock(mutex_);
  const ByStep& levels = levelsIn(key.phase);
  const auto found = levels.find(key.step);
  if (found == levels.end()) return insert(key.phase, key.step, level);
  if (found->second == level) return;
  throw ProtocolError("bad-tensor", toString(key) + " has another codec level than its batch");
}

}  // namespace cleave
