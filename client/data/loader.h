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
  std::vector<BatchArray> arrays;  // those of the dataset: the model's inputs, then the target
  std::uint32_t samples() const {
    return static_cast<std::uint32_t>(arrays.back().spec.shape.front());
  }
};

// One pass over a dataset in batches of `batch`; the last may be smaller. If shuffled, the order is
// randomPermutation keyed by (seed, "shuffle", epoch); otherwise the dataset's. Prepares at most
// `ahead` batches in advance. The results do not depend on the number of threads.
class Loader {
 public:
  struct Options {
    std::uint32_t batch = 0;
    bool shuffle = false;
    bool training = false;  // reads samples as training uses them in the epoch
    std::uint64_t seed = 0;
    std::uint64_t epoch = 0;
    std::uint32_t ahead = 1;
    std::uint64_t firstBatch = 0;  // starts there, as if earlier batches had been delivered
    // Threads that prepare samples. 0: one, and more if the first samples turn out to be costly.
    std::uint32_t threads = 1;
    // Not null: the pass consists of as many samples as the dataset has, chosen by drawBalanced().
    // A sample that is drawn for the nth time (from 0) is read as in the epoch `epoch + (n << 32)`,
    // so that each draw is augmented differently.
    std::shared_ptr<const SamplesByClass> balanced = nullptr;
  };
  Loader(std::shared_ptr<const Dataset> data, std::shared_ptr<BufferPool> pool,
         const Options& options);
  ~Loader();  // stops the threads
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Waits for the next batch; empty at the end of the pass. If samples cannot be read, first
  // delivers the batches before the first such sample, then rethrows its error.
  std::optional<Batch> next();
  static std::uint32_t batches(const Dataset& data, std::uint32_t batch);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cleave
