#include "client/data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <stop_token>
#include <thread>
#include <utility>

#include "common/core/random.h"

namespace cleave {

struct Loader::State {
  State(std::shared_ptr<const Dataset> from, std::shared_ptr<BufferPool> buffers,
        const Options& how)
      : data(std::move(from)), pool(std::move(buffers)), options(how), arrays(data->arrays()) {
    for (const SampleArray& array : arrays) sampleBytes.push_back(specOf(array, 1).bytes());
    thread = std::jthread([this](const std::stop_token& stop) { prepareAll(stop); });
  }

  // The loader's thread: prepares all batches of the pass, each as soon as there is room for it.
  void prepareAll(const std::stop_token& stop);
  // Empty if stopped in the meantime.
  std::optional<Batch> prepare(std::span<const std::uint32_t> indices, const std::stop_token& stop);
  std::vector<std::uint32_t> order() const;

  const std::shared_ptr<const Dataset> data;
  const std::shared_ptr<BufferPool> pool;
  const Options options;
  const std::vector<SampleArray> arrays;
  std::vector<std::size_t> sampleBytes;  // of each array

  std::mutex mutex;  // guards the members below, except the thread
  std::condition_variable_any changed;
  std::deque<Batch> ready;
  bool ended = false;
  std::exception_ptr failure;  // ended the pass early; thrown after the batches before it

  std::jthread thread;  // last: joined before the members it uses are destroyed
};

std::vector<std::uint32_t> Loader::State::order() const {
  if (options.shuffle) {
    return randomPermutation(randomKey(options.seed, "shuffle", {options.epoch}), data->size());
  }
  std::vector<std::uint32_t> indices(data->size());
  std::iota(indices.begin(), indices.end(), 0u);
  return indices;
}

void Loader::State::prepareAll(const std::stop_token& stop) {
  std::exception_ptr caught;
  try {
    const std::vector<std::uint32_t> indices = order();
    for (std::size_t first = options.firstBatch * options.batch; first < indices.size();
         first += options.batch) {
      {
        std::unique_lock lock(mutex);
        const auto room = [this] { return ready.size() < options.ahead; };
        if (!changed.wait(lock, stop, room)) return;
      }
      const std::size_t samples = std::min<std::size_t>(options.batch, indices.size() - first);
      std::optional<Batch> batch = prepare(std::span(indices).subspan(first, samples), stop);
      if (!batch) return;
      const std::lock_guard lock(mutex);
      ready.push_back(std::move(*batch));
      changed.notify_all();
    }
  } catch (...) {
    caught = std::current_exception();
  }
  const std::lock_guard lock(mutex);
  failure = caught;
  ended = true;
  changed.notify_all();
}

std::optional<Batch> Loader::State::prepare(std::span<const std::uint32_t> indices,
                                            const std::stop_token& stop) {
  Batch batch;
  for (const SampleArray& array : arrays) {
    const TensorSpec spec = specOf(array, static_cast<std::uint32_t>(indices.size()));
    batch.arrays.push_back({pool->acquire(spec.bytes()), spec});
  }
  std::vector<std::span<std::byte>> sample(arrays.size());
  for (std::size_t n = 0; n < indices.size(); ++n) {
    if (stop.stop_requested()) return std::nullopt;
    for (std::size_t a = 0; a < arrays.size(); ++a) {
      sample[a] = {batch.arrays[a].memory.data() + n * sampleBytes[a], sampleBytes[a]};
    }
    data->write(indices[n], options.training ? std::optional(options.epoch) : std::nullopt, sample);
  }
  return batch;
}

Loader::Loader(std::shared_ptr<const Dataset> data, std::shared_ptr<BufferPool> pool,
               const Options& options) {
  if (options.batch == 0 || options.ahead == 0) {
    throw UsageError(
        "data-batch",
        "a batch must have at least one sample, and at least one batch must be prepared ahead",
        "set a positive batch in the configuration");
  }
  state_ = std::make_unique<State>(std::move(data), std::move(pool), options);
}

Loader::~Loader() = default;

std::optional<Batch> Loader::next() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return !state_->ready.empty() || state_->ended; });
  if (!state_->ready.empty()) {
    Batch batch = std::move(state_->ready.front());
    state_->ready.pop_front();
    state_->changed.notify_all();
    return batch;
  }
  if (state_->failure) std::rethrow_exception(state_->failure);
  return std::nullopt;
}

std::uint32_t Loader::batches(const Dataset& data, std::uint32_t batch) {
  return data.size() / batch + (data.size() % batch != 0 ? 1 : 0);
}

}  // namespace cleave
