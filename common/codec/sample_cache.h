// Holds, for each sample of the training data, the values that a flow's receiver decoded last.
// Sender and receiver of the flow keep equal caches, so that the sender can send only changes. One
// thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/resources/held_bytes.h"
#include "common/resources/mapped_memory.h"

namespace cleave {

class SampleCache {
 public:
  // A cache without rows, for samples numbered from 0 to `samples` - 1. The rows are in memory, or,
  // if `folder` is not empty, in a file in this folder (MappedMemory).
  explicit SampleCache(std::uint32_t samples, std::string folder = "")
      : folder_(std::move(folder)), steps_(samples, kNone) {}

  // Memory per sample, in addition to its row.
  static constexpr std::size_t kIndexBytes = sizeof(std::uint64_t);
  // The memory per sample, of which the row, of `elements` values, may be in a file instead.
  static constexpr std::size_t bytesPerSample(std::size_t elements) {
    return kIndexBytes + elements * sizeof(float);
  }

  // The sample's row; empty if it has none. Valid until the row is replaced.
  std::span<const float> row(std::uint32_t number) const {
    return steps_[number] == kNone ? std::span<const float>() : placeOf(number);
  }
  // `step`, from 1: the training step that the row is from. A row that is equal to the current one
  // does not count as a change. Throws the errors of MappedMemory, and RunError "bad-checkpoint" if
  // rows with another number of elements were restored.
  void replace(std::uint32_t number, std::span<const float> row, std::uint64_t step);

  // Serializes the rows that have changed after step `since`; 0: all rows. The bytes are where the
  // rows are: in memory or in a file. Empty if there are none. Throws the errors of MappedMemory.
  HeldBytes save(std::uint64_t since = 0) const;
  // Replaces rows by those that save() returned. Throws RunError "bad-checkpoint" unless the bytes
  // are saved rows of this cache's samples, with as many elements as the rows that it has, and the
  // errors of MappedMemory. If it throws, some rows may already be replaced.
  void restore(std::span<const std::byte> bytes);

 private:
  // Values of steps_, other than the step of a row's last change.
  static constexpr std::uint64_t kRestored = 0, kNone = ~std::uint64_t{0};

  void useRowsOf(std::size_t elements);
  std::span<const float> placeOf(std::uint32_t number) const {
    const auto* const values = reinterpret_cast<const float*>(rows_.span().data());
    return {values + number * elements_, elements_};
  }
  std::span<float> placeOf(std::uint32_t number) {
    auto* const values = reinterpret_cast<float*>(rows_.span().data());
    return {values + number * elements_, elements_};
  }

  std::string folder_;                // empty: in memory
  std::vector<std::uint64_t> steps_;  // by sample
  MappedMemory rows_;                 // of all samples; empty until there is a row
  std::size_t elements_ = 0;          // of a row; 0: there is none
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
