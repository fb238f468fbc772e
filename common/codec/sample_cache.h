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
  std::span<const float> row(std::uint32_t number) const { return rows_[number].values; }
  // `step`, from 1: the training step that the row is from. A row that is equal to the current one
  // does not count as a change.
  void replace(std::uint32_t number, std::span<const float> row, std::uint64_t step);

  // Serializes the rows that have changed after step `since`; 0: all rows. They must all have the
  // same number of elements. Empty if there are none.
  std::vector<std::byte> save(std::uint64_t since = 0) const;
  // Replaces rows by those that save() returned. Throws RunError "bad-checkpoint" unless the bytes
  // are saved rows of this cache's samples, with as many elements as the rows that it has. If it
  // throws, some rows may already be replaced.
  void restore(std::span<const std::byte> bytes);

 private:
  struct Row {
    std::vector<float> values;
    std::uint64_t step = 0;  // of the last change; 0: restored
  };
  std::vector<Row> rows_;     // by sample
  std::size_t elements_ = 0;  // of a row; 0: there is none
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
