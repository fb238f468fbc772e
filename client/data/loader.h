// Batches in the order of the run, prepared ahead by a thread of their own. No Torch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "client/data/dataset.h"
#include "common/core/buffer.h"

namespace cleave {

struct Batch {
  Buffer inputs;                     // contiguous f32 [samples, sample shape…], 64-byte aligned
  std::vector<std::int64_t> labels;  // one a sample
  std::uint32_t samples() const { return static_cast<std::uint32_t>(labels.size()); }
};

// One pass over a dataset in batches of `batch`; the last may be smaller. Shuffled: in the order of
// randomPermutation keyed (seed, "shuffle", epoch); else in order. At most `ahead` batches are
// prepared beyond the one taken.
class Loader {
 public:
  struct Options {
    std::uint32_t batch = 0;
    bool shuffle = false;
    bool training = false;  // samples as the epoch trains on them: augmented, where asked for
    std::uint64_t seed = 0;
    std::uint64_t epoch = 0;
    std::uint32_t ahead = 1;
  };
  Loader(std::shared_ptr<const Dataset> data, std::shared_ptr<BufferPool> pool,
         const Options& options);
  ~Loader();  // stops the thread
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next batch, waiting for it; nothing at the end of the pass. Throws what reading a sample
  // threw.
  std::optional<Batch> next();
  static std::uint32_t batches(const Dataset& data, std::uint32_t batch);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cleave
