#include "client/data/samples/loader.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <stop_token>
#include <system_error>
#include <thread>
#include <utility>

#include "common/core/clock.h"
#include "common/core/random.h"
#include "common/files/environment.h"

namespace cleave {
namespace {

// Cheap samples are prepared this many at a time, so that threads rarely wait for the mutex.
constexpr std::size_t kMaxTurn = 32;
// With Options::threads = 0, more threads are started if each timed sample takes at least this
// long.
constexpr double kCostlySeconds = 300e-6;
constexpr int kTimedSamples = 4;
constexpr int kMaxAutomaticThreads = 16;

std::vector<std::uint32_t> orderOf(const Loader::Options& options, std::uint32_t samples) {
  std::vector<std::uint32_t> given = options.order;
  if (!given.empty() || !options.sizes.empty()) return given;
  given.resize(samples);
  std::iota(given.begin(), given.end(), 0u);
  return given;
}

std::vector<std::uint32_t> repeatsIn(const std::vector<std::uint32_t>& order,
                                     std::uint32_t samples) {
  std::vector<std::uint32_t> seen(samples), repeats;
  for (const std::uint32_t index : order) repeats.push_back(seen[index]++);
  return repeats;
}

}  // namespace

// Threads take samples in order, from the newest batch in `window`. When all its samples are taken,
// the next batch is added if there is room. So if a sample cannot be read, all samples before it
// have already been taken. Threads then take no more samples, and the pass ends when all taken
// samples are done.
struct Loader::State {
  State(std::shared_ptr<const Dataset> from, std::shared_ptr<BufferPool> buffers, Options how);
  ~State();

  struct Preparation {
    Batch batch;
    std::size_t first = 0;  // position in the pass
    std::size_t samples = 0;
    std::size_t taken = 0, done = 0;  // numbers of samples
    bool isReady() const { return done == samples; }
  };
  // A thread's work: it prepares samples [first, end) of a batch.
  struct Turn {
    Preparation* batch = nullptr;
    std::size_t first = 0, end = 0;
  };
  struct Failure {
    std::size_t position;
    std::exception_ptr error;
  };

  void work(const std::stop_token& stop);
  void writeSample(Preparation& batch, std::size_t n, std::span<std::span<std::byte>> memory) const;

  // The caller holds the mutex.
  Turn takeTurn();
  std::size_t sizeOf(std::size_t batch) const;
  void openBatch();
  void noteTime(double seconds);
  void noteFailure(std::size_t position, std::exception_ptr error);
  bool hasTakenAll() const {
    const bool isOpen = !window.empty() && window.back()->taken < window.back()->samples;
    return failure || (hasOpenedAll() && !isOpen);
  }
  bool hasOpenedAll() const {
    return options.sizes.empty() ? next == order.size() : opened == options.sizes.size();
  }

  const std::shared_ptr<const Dataset> data;
  const std::shared_ptr<BufferPool> pool;
  const Options options;
  const std::vector<std::uint32_t> order;    // indices of the pass's samples
  const std::vector<std::uint32_t> repeats;  // per position: how often its sample occurs before
  const std::vector<SampleArray> arrays;
  std::vector<std::size_t> sampleBytes;  // per array: bytes of one sample

  std::mutex mutex;  // guards the members below
  std::condition_variable_any changed;
  std::deque<std::unique_ptr<Preparation>> window;  // oldest first
  std::size_t opened = 0;                           // number of the batch after `window`
  std::size_t next = 0;                             // position of the first sample after `window`
  std::size_t active = 0;                           // turns in progress
  std::optional<Failure> failure;                   // the failure of the earliest failed sample
  std::size_t turnSamples = 1;
  int untimed = 0;  // samples still to be timed
  bool isStopping = false;

  std::vector<std::jthread> threads;  // must be the last member: its threads use the others
};

Loader::State::State(std::shared_ptr<const Dataset> from, std::shared_ptr<BufferPool> buffers,
                     Options how)
    : data(std::move(from)),
      pool(std::move(buffers)),
      options(std::move(how)),
      order(orderOf(options, data->size())),
      repeats(repeatsIn(order, data->size())),
      arrays(data->arrays()) {
  while (opened < options.firstBatch && !hasOpenedAll()) next += sizeOf(opened++);
  for (const SampleArray& array : arrays) sampleBytes.push_back(specOf(array, 1).bytes());
  if (options.threads == 0) {
    untimed = kTimedSamples;
  } else {
    turnSamples = std::clamp<std::size_t>(options.batch / (4 * options.threads), 1, kMaxTurn);
  }
  const std::lock_guard lock(mutex);  // the first thread may add others
  do {
    threads.emplace_back([this](const std::stop_token& stop) { work(stop); });
  } while (threads.size() < options.threads);
}

Loader::State::~State() {
  {
    const std::lock_guard lock(mutex);
    isStopping = true;
  }
  for (std::jthread& thread : threads) thread.request_stop();
}

void Loader::State::work(const std::stop_token& stop) {
  std::vector<std::span<std::byte>> memory(arrays.size());
  std::unique_lock lock(mutex);
  while (true) {
    Turn turn;
    const auto canLeave = [&] {
      turn = takeTurn();
      return turn.batch != nullptr || hasTakenAll();
    };
    if (!changed.wait(lock, stop, canLeave) || turn.batch == nullptr) return;

    lock.unlock();
    const SteadyTime start = now();
    std::size_t n = turn.first;
    std::exception_ptr caught;
    try {
      for (; n < turn.end && !stop.stop_requested(); ++n) writeSample(*turn.batch, n, memory);
    } catch (...) {
      caught = std::current_exception();
    }
    const double seconds = secondsSince(start);
    lock.lock();

    --active;
    if (caught) {
      noteFailure(turn.batch->first + n, caught);
    } else if (n < turn.end) {
      return;  // stopped
    } else {
      turn.batch->done += turn.end - turn.first;
      if (untimed > 0) noteTime(seconds);
    }
    if (failure || turn.batch->isReady()) changed.notify_all();
  }
}

Loader::State::Turn Loader::State::takeTurn() {
  if (failure) return {};
  if (window.empty() || window.back()->taken == window.back()->samples) {
    if (hasOpenedAll() || window.size() >= options.ahead) return {};
    const std::size_t position = next;
    try {
      openBatch();
    } catch (...) {
      noteFailure(position, std::current_exception());
      return {};
    }
  }
  Preparation& batch = *window.back();
  const std::size_t first = batch.taken;
  batch.taken = std::min(first + turnSamples, batch.samples);
  ++active;
  return {&batch, first, batch.taken};
}

std::size_t Loader::State::sizeOf(std::size_t batch) const {
  return options.sizes.empty() ? std::min<std::size_t>(options.batch, order.size() - next)
                               : options.sizes[batch];
}

void Loader::State::openBatch() {
  auto batch = std::make_unique<Preparation>();
  batch->first = next;
  batch->samples = sizeOf(opened);
  for (const SampleArray& array : arrays) {
    const TensorSpec spec = specOf(array, static_cast<std::uint32_t>(batch->samples));
    batch->batch.arrays.push_back({pool->acquire(spec.bytes()), spec});
  }
  const auto first = order.begin() + static_cast<std::ptrdiff_t>(next);
  batch->batch.numbers.assign(first, first + static_cast<std::ptrdiff_t>(batch->samples));
  next += batch->samples;
  ++opened;
  window.push_back(std::move(batch));
  if (threads.size() > 1) changed.notify_all();
}

void Loader::State::writeSample(Preparation& batch, std::size_t n,
                                std::span<std::span<std::byte>> memory) const {
  for (std::size_t a = 0; a < arrays.size(); ++a) {
    memory[a] = {batch.batch.arrays[a].memory.data() + n * sampleBytes[a], sampleBytes[a]};
  }
  const std::size_t position = batch.first + n;
  std::optional<std::uint64_t> epoch = options.epoch;
  if (epoch) *epoch += std::uint64_t{repeats[position]} << 32;
  data->write(order[position], epoch, memory);
}

// Called after each timed sample. One fast sample is enough to show that samples are cheap, whereas
// a slow sample may just have waited for a processor.
void Loader::State::noteTime(double seconds) {
  --untimed;
  if (seconds < kCostlySeconds) {
    untimed = 0;
    turnSamples = kMaxTurn;
  }
  if (untimed > 0 || seconds < kCostlySeconds || isStopping) return;
  const int most = std::min(usableCores(), kMaxAutomaticThreads);
  try {
    while (static_cast<int>(threads.size()) < most) {
      threads.emplace_back([this](const std::stop_token& stop) { work(stop); });
    }
  } catch (const std::system_error&) {
    // The system refused another thread. The existing threads suffice; they only take longer.
  }
}

void Loader::State::noteFailure(std::size_t position, std::exception_ptr error) {
  if (!failure || position < failure->position) failure = {position, std::move(error)};
  changed.notify_all();
}

std::vector<std::uint32_t> shuffledOrder(std::uint32_t samples, std::uint64_t seed,
                                         std::uint64_t epoch) {
  return randomPermutation(randomKey(seed, "shuffle", {epoch}), samples);
}

Loader::Loader(std::shared_ptr<const Dataset> data, std::shared_ptr<BufferPool> pool,
               Options options) {
  if (options.batch == 0 || options.ahead == 0) {
    throw UsageError(
        "data-batch",
        "a batch must have at least one sample, and at least one batch must be prepared ahead",
        "set a positive batch in the configuration");
  }
  state_ = std::make_unique<State>(std::move(data), std::move(pool), std::move(options));
}

Loader::~Loader() = default;

std::optional<Batch> Loader::next() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  const auto hasBatch = [&] { return !state.window.empty() && state.window.front()->isReady(); };
  state.changed.wait(lock,
                     [&] { return hasBatch() || (state.hasTakenAll() && state.active == 0); });
  if (hasBatch()) {
    Batch batch = std::move(state.window.front()->batch);
    state.window.pop_front();
    state.changed.notify_all();
    return batch;
  }
  if (state.failure) std::rethrow_exception(state.failure->error);
  return std::nullopt;
}

std::uint32_t Loader::batches(std::uint32_t samples, std::uint32_t batch) {
  return samples / batch + (samples % batch != 0 ? 1 : 0);
}

}  // namespace cleave
