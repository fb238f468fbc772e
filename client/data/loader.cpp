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
      : data(std::move(from)), pool(std::move(buffers)), options(how) {
    for (const std::int64_t dimension : data->sampleShape()) {
      sampleElements *= static_cast<std::size_t>(dimension);
    }
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
  std::size_t sampleElements = 1;

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
  batch.inputs = pool->acquire(indices.size() * sampleElements * sizeof(float));
  batch.labels.reserve(indices.size());
  auto* out = reinterpret_cast<float*>(batch.inputs.data());
  for (const std::uint32_t index : indices) {
    if (stop.stop_requested()) return std::nullopt;
    const std::span<float> sample(out, sampleElements);
    batch.labels.push_back(options.training ? data->readForTraining(index, options.epoch, sample)
                                            : data->read(index, sample));
    out += sampleElements;
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
