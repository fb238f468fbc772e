// Delivers batches in the run's order, prepared ahead on its own threads. No Torch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "client/data/dataset.h"
#include "client/data/subset.h"
#include "common/core/buffer.h"

namespace cleave {

struct BatchArray {
  Buffer memory;    // 64-byte aligned
  TensorSpec spec;  // [samples, …], contiguous
  TensorView view() const { return {memory.data(), spec}; }
};

struct Batch {
  std::vector<BatchArray> arrays;      // in the order of Dataset::arrays()
  std::vector<std::uint32_t> numbers;  // indices of the samples in the dataset
  std::uint32_t samples() const {
    return static_cast<std::uint32_t>(arrays.back().spec.shape.front());
  }
};

// One pass over a dataset in batches of `batch` samples; the last batch may be smaller. A shuffled
// pass uses randomPermutation keyed by (seed, "shuffle", epoch); any other pass keeps the dataset's
// order. Prepares at most `ahead` batches in advance. The results do not depend on the number of
// threads.
class Loader {
 public:
  struct Options {
    std::uint32_t batch = 0;
    bool shuffle = false;
    bool training = false;  // applies the training augmentation of `epoch`
    std::uint64_t seed = 0;
    std::uint64_t epoch = 0;
    std::uint32_t ahead = 1;
    std::uint64_t firstBatch = 0;  // skips the batches before this one
    // Threads that prepare samples. 0: one thread, and more if the first samples are costly.
    std::uint32_t threads = 1;
    // If set, drawBalanced() chooses the samples, as many as the dataset has. The nth draw of a
    // sample (from 0) is augmented as in epoch `epoch + (n << 32)`, so that each draw differs.
    std::shared_ptr<const SamplesByClass> balanced = nullptr;
  };
  Loader(std::shared_ptr<const Dataset> data, std::shared_ptr<BufferPool> pool,
         const Options& options);
  ~Loader();  // stops the threads
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Waits for the next batch; returns nothing at the end of the pass. If a sample cannot be read,
  // delivers all batches before it, then throws its error, as a RunError.
  std::optional<Batch> next();
  static std::uint32_t batches(const Dataset& data, std::uint32_t batch);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cleave
