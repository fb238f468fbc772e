#include "common/checkpoint/samples_base.h"

#include <algorithm>

namespace cleave {
namespace {

constexpr std::size_t kMaxFiles = 64;

// Checkpoints of earlier versions have their samples in the .safetensors file.
bool canContinue(const std::vector<SamplesFile>& samples) {
  if (samples.empty() || samples.size() >= kMaxFiles) return false;
  std::uint64_t later = 0;
  for (std::size_t j = 1; j < samples.size(); ++j) later += samples[j].bytes;
  return later < samples.front().bytes;
}

}  // namespace

void SamplesBase::add(const CheckpointInfo& checkpoint) {
  const std::lock_guard lock(mutex_);
  known_[checkpoint.step] = checkpoint;
}

CheckpointInfo SamplesBase::choose(const std::vector<std::uint64_t>& committed) {
  if (committed.empty()) return {};
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(*std::max_element(committed.begin(), committed.end()));
  if (found == known_.end()) return {};
  known_.erase(known_.begin(), found);  // no longer needed
  return canContinue(found->second.samples) ? found->second : CheckpointInfo();
}

}  // namespace cleave
