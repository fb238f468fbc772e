#include "common/checkpoint/rows_base.h"

#include <algorithm>

namespace cleave {
namespace {

bool hasLongHistory(const std::vector<RowsFile>& rows) {
  std::uint64_t later = 0;
  for (std::size_t j = 1; j < rows.size(); ++j) later += rows[j].bytes;
  return !rows.empty() && later >= rows.front().bytes;
}

}  // namespace

void RowsBase::add(const CheckpointInfo& checkpoint) {
  const std::lock_guard lock(mutex_);
  known_[checkpoint.step] = checkpoint;
}

std::optional<CheckpointInfo> RowsBase::choose(const std::vector<std::uint64_t>& committed) {
  if (committed.empty()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(*std::max_element(committed.begin(), committed.end()));
  if (found == known_.end()) return std::nullopt;
  known_.erase(known_.begin(), found);  // no longer needed
  if (hasLongHistory(found->second.rows)) return std::nullopt;
  return found->second;
}

}  // namespace cleave
