// Delivers batches in a given order, prepared ahead on its own threads. No Torch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "client/data/samples/dataset.h"
#include "common/resources/buffer.h"

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

// The random order of an epoch, keyed by (seed, "shuffle", epoch).
std::vector<std::uint32_t> shuffledOrder(std::uint32_t samples, std::uint64_t seed,
                                         std::uint64_t epoch);

// One pass over samples of a dataset in batches of `batch` samples; the last batch may be smaller.
// Prepares at most `ahead` batches in advance. The results do not depend on the number of threads.
class Loader {
 public:
  struct Options {
    std::uint32_t batch = 0;
    // The samples of each batch, which may be 0; empty: `batch` each, and the rest in the last one.
    std::vector<std::uint32_t> sizes = {};
    // The samples of the pass, in their order; empty: all, in the dataset's order.
    std::vector<std::uint32_t> order = {};
    // Applies the training augmentation of this epoch. The nth time that a sample occurs (from 0),
    // it is augmented as in epoch `epoch + (n << 32)`, so that each time differs.
    std::optional<std::uint64_t> epoch = std::nullopt;
    std::uint32_t ahead = 1;
    std::uint64_t firstBatch = 0;  // skips the batches before this one
    // Threads that prepare samples. 0: one thread, and more if the first samples are costly.
    std::uint32_t threads = 1;
  };
  Loader(std::shared_ptr<const Dataset> data, std::shared_ptr<BufferPool> pool, Options options);
  ~Loader();  // stops the threads
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Waits for the next batch; returns nothing at the end of the pass. If a sample cannot be read,
  // delivers all batches before it, then throws its error, as a RunError.
  std::optional<Batch> next();
  // The number of batches in a pass over this many samples.
  static std::uint32_t batches(std::uint32_t samples, std::uint32_t batch);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cleave
