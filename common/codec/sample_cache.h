// Holds, for each sample of the training data, the values that a flow's receiver decoded last.
// Sender and receiver of the flow keep equal caches, so that the sender can send only changes. One
// thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cleave {

class SampleCache {
 public:
  // A cache without rows, for samples numbered from 0 to `samples` - 1.
  explicit SampleCache(std::uint32_t samples) : rows_(samples) {}

  // The maximum memory per sample, for rows of `elements` values.
  static std::size_t bytesPerSample(std::size_t elements);

  // The sample's row; empty if it has none. Valid until the row is replaced.
  std::span<const float> row(std::uint32_t number) const { return rows_[number]; }
  void replace(std::uint32_t number, std::span<const float> row) {
    rows_[number].assign(row.begin(), row.end());
  }

  // Serializes the rows, which must all have the same number of elements.
  std::vector<std::byte> save() const;
  // Reads what save() returned. Throws RunError "bad-checkpoint" unless the bytes are a saved cache
  // whose samples are all below `samples`.
  static SampleCache restore(std::span<const std::byte> bytes, std::uint32_t samples);

 private:
  std::vector<std::vector<float>> rows_;  // by sample
};

// The history of a tensor's samples, for codecs that send changes.
struct SampleHistory {
  // The samples' numbers in the training data, one per row: the tensor's first dimension. All are
  // within the cache.
  std::span<const std::uint32_t> numbers;
  const SampleCache& cache;
  // Output of encode() and decode(): the tensor's values as the receiver decodes them, in memory
  // order. They replace the rows in the cache when the step is complete. Empty: the cache keeps its
  // rows.
  std::vector<float> decoded = {};
};

}  // namespace cleave
