// The loader: the order of a pass, its batches, how many batches are prepared ahead, and how a pass
// ends.
#include "client/data/samples/loader.h"
#include "client/data/samples/subset.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdint>
#include <map>
#include <mutex>
#include <numeric>
#include <semaphore>
#include <set>
#include <thread>

#include "common/core/clock.h"
#include "common/core/random.h"
#include "common/files/environment.h"
#include "tests/support/files/samples.h"

namespace cleave::test {
namespace {

// Sample j is {j, -j} with the label j. Counts the samples that were read, and can be set to fail
// or to block.
class Counting final : public LabeledDataset {
 public:
  explicit Counting(std::uint32_t size) : size_(size) {}

  std::uint32_t size() const override { return size_; }
  std::vector<std::int64_t> sampleShape() const override { return {2, 1}; }
  int classes() const override { return static_cast<int>(size_); }
  std::int64_t read(std::uint32_t index, std::span<float> out) const override {
    if (index == failAt)
      throw RunError("data-broken", "sample " + std::to_string(index) + " is broken");
    if (gated) {
      arrived.release();
      gate.acquire();
    }
    ++reads;
    out[0] = static_cast<float>(index);
    out[1] = -static_cast<float>(index);
    return index;
  }

  std::uint32_t failAt = 0xFFFFFFFF;
  bool gated = false;
  mutable std::counting_semaphore<> arrived{0};  // released once per started read
  mutable std::counting_semaphore<> gate{0};     // acquired once per read before it continues
  mutable std::atomic<std::uint32_t> reads = 0;

 private:
  std::uint32_t size_;
};

std::shared_ptr<BufferPool> newPool() { return std::make_shared<BufferPool>(); }

// All labels of a pass in order; checks each batch against its labels.
std::vector<std::int64_t> passLabels(Loader& loader, std::uint32_t batch, std::uint32_t size) {
  std::vector<std::int64_t> labels;
  while (auto got = loader.next()) {
    REQUIRE(got->samples() == std::min<std::size_t>(batch, size - labels.size()));
    const std::span<const float> values = valuesOf(*got);
    const std::span<const std::int64_t> those = labelsOf(*got);
    REQUIRE(got->arrays.front().spec == TensorSpec{DType::f32, {got->samples(), 2, 1}});
    REQUIRE(reinterpret_cast<std::uintptr_t>(values.data()) % kAlignment == 0);
    REQUIRE(got->numbers.size() == those.size());
    for (std::size_t j = 0; j < those.size(); ++j) {
      REQUIRE(got->numbers[j] == those[j]);
      REQUIRE(values[2 * j] == static_cast<float>(those[j]));
      REQUIRE(values[2 * j + 1] == -static_cast<float>(those[j]));
    }
    labels.insert(labels.end(), those.begin(), those.end());
  }
  return labels;
}

std::vector<std::int64_t> passOf(std::uint32_t size, const Loader::Options& options) {
  Loader loader(std::make_shared<Counting>(size), newPool(), options);
  return passLabels(loader, options.batch, options.order.empty() ? size : options.order.size());
}

TEST_CASE("a pass has every sample once, in order, and its last batch may be smaller") {
  for (const std::uint32_t size : {1u, 7u, 8u, 9u, 50u}) {
    std::vector<std::int64_t> expected(size);
    std::iota(expected.begin(), expected.end(), 0);
    CHECK(passOf(size, {.batch = 8}) == expected);
    CHECK(passOf(size, {.batch = 8, .ahead = 1}) == expected);
  }
}

TEST_CASE("the number of batches includes the smaller last one") {
  CHECK(Loader::batches(16, 8) == 2);
  CHECK(Loader::batches(17, 8) == 3);
  CHECK(Loader::batches(1, 8) == 1);
  CHECK(Loader::batches(0xFFFFFFFF, 0xFFFFFFFE) == 2);
}

TEST_CASE("a pass follows the given order, which may leave samples out") {
  CHECK(passOf(3, {.batch = 8, .order = {2, 0}}) == std::vector<std::int64_t>{2, 0});
  const auto labels = passOf(100, {.batch = 8, .order = shuffledOrder(100, 5, 3)});
  const auto expected = randomPermutation(randomKey(5, "shuffle", {3}), 100);
  CHECK(std::equal(labels.begin(), labels.end(), expected.begin(), expected.end()));
  CHECK(passOf(100, {.batch = 32, .order = expected}) == labels);
}

TEST_CASE("a shuffle has all samples, and is the same only for the same seed and epoch") {
  const auto order = shuffledOrder(100, 5, 3);
  CHECK(shuffledOrder(100, 5, 3) == order);
  CHECK(shuffledOrder(100, 5, 4) != order);
  CHECK(shuffledOrder(100, 6, 3) != order);
  auto sorted = order;
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::uint32_t> all(100);
  std::iota(all.begin(), all.end(), 0u);
  CHECK(sorted == all);
}

TEST_CASE("after the end of the pass, next() is always empty") {
  Loader loader(std::make_shared<Counting>(3), newPool(), {.batch = 8});
  CHECK(loader.next().has_value());
  CHECK_FALSE(loader.next().has_value());
  CHECK_FALSE(loader.next().has_value());
}

TEST_CASE("exactly `ahead` batches are prepared beyond the one taken") {
  auto data = std::make_shared<Counting>(100);
  data->gated = true;
  data->gate.release(100);
  Loader loader(data, newPool(), {.batch = 10, .ahead = 3});
  std::uint32_t begun = 0;
  for (std::uint32_t taken = 0; taken <= 7; ++taken) {
    const std::uint32_t bound = (taken + 3) * 10;
    for (; begun < bound; ++begun)
      data->arrived.acquire();  // would hang if the loader prepared no batches ahead
    CHECK(data->reads <= bound);
    REQUIRE(loader.next().has_value());
  }
}

TEST_CASE("an exception from reading a sample is rethrown by next(), after the earlier batches") {
  auto data = std::make_shared<Counting>(100);
  data->failAt = 25;
  Loader loader(data, newPool(), {.batch = 10});
  CHECK(labelsOf(*loader.next()).front() == 0);
  CHECK(labelsOf(*loader.next()).front() == 10);
  CHECK_THROWS_WITH(loader.next(), "sample 25 is broken");
  CHECK_THROWS_AS(loader.next(), RunError);
}

TEST_CASE("a loader destroyed in the middle of a batch stops at the next sample") {
  auto data = std::make_shared<Counting>(1'000'000);
  data->gated = true;
  auto loader = std::make_unique<Loader>(data, newPool(), Loader::Options{.batch = 1'000'000});
  data->arrived.acquire();  // the thread is inside a read
  std::atomic<bool> destroyed = false;
  std::thread destroyer([&] {
    loader.reset();
    destroyed = true;
  });
  while (!destroyed) data->gate.release();
  destroyer.join();
  CHECK(data->reads < 1'000'000);
}

TEST_CASE("a loader that nobody reads from can be destroyed") {
  for (int round = 0; round < 50; ++round) {
    auto data = std::make_shared<Counting>(100);
    { Loader loader(data, newPool(), {.batch = 10, .ahead = 2}); }
    CHECK(data->reads <= 20);
  }
}

TEST_CASE("buffers come from the pool and outlive the loader") {
  auto pool = newPool();
  std::optional<Batch> kept;
  {
    Loader loader(std::make_shared<Counting>(40), pool, {.batch = 10});
    kept = loader.next();
  }
  CHECK(labelsOf(*kept).size() == 10);
  CHECK(valuesOf(*kept)[2 * 9] == 9);
  const std::size_t before = pool->retainedBytes();
  kept.reset();
  CHECK(pool->retainedBytes() > before);
  pool->clear();
  CHECK(pool->retainedBytes() == 0);
}

// ---- Several threads ----

TEST_CASE("the number of threads does not change the batches") {
  for (const std::uint32_t batch : {1u, 8u, 33u, 200u}) {
    Loader::Options options = {.batch = batch, .order = shuffledOrder(100, 5, 3)};
    const auto expected = passOf(100, options);
    for (const std::uint32_t threads : {0u, 2u, 5u, 40u}) {
      options.threads = threads;
      for (const std::uint32_t ahead : {1u, 3u}) {
        options.ahead = ahead;
        CHECK(passOf(100, options) == expected);
      }
      options.firstBatch = 1;
      Loader loader(std::make_shared<Counting>(100), newPool(), options);
      std::vector<std::int64_t> labels;
      while (auto got = loader.next()) {
        labels.insert(labels.end(), labelsOf(*got).begin(), labelsOf(*got).end());
      }
      CHECK(labels ==
            std::vector(expected.begin() + std::min<std::ptrdiff_t>(batch, 100), expected.end()));
      options.firstBatch = 0;
    }
  }
}

TEST_CASE("threads prepare the samples of one batch at the same time") {
  auto data = std::make_shared<Counting>(12);
  data->gated = true;
  Loader loader(data, newPool(), {.batch = 4, .threads = 3});
  for (int n = 0; n < 3; ++n) data->arrived.acquire();  // would hang if they waited for each other
  data->gate.release(12);
  CHECK(labelsOf(*loader.next()).back() == 3);
  CHECK(labelsOf(*loader.next()).back() == 7);
}

TEST_CASE("exactly `ahead` batches are prepared by several threads too") {
  auto data = std::make_shared<Counting>(100);
  data->gated = true;
  data->gate.release(100);
  Loader loader(data, newPool(), {.batch = 10, .ahead = 3, .threads = 4});
  std::uint32_t begun = 0;
  for (std::uint32_t taken = 0; taken <= 7; ++taken) {
    const std::uint32_t bound = (taken + 3) * 10;
    for (; begun < bound; ++begun) data->arrived.acquire();
    CHECK(data->reads <= bound);
    REQUIRE(loader.next().has_value());
  }
}

// Reading sample 12 fails, but only after reading sample 30 has failed. All other samples can be
// read.
class FailingTwice final : public LabeledDataset {
 public:
  std::uint32_t size() const override { return 100; }
  std::vector<std::int64_t> sampleShape() const override { return {1}; }
  int classes() const override { return 100; }
  std::int64_t read(std::uint32_t index, std::span<float> out) const override {
    if (index == 30) laterFailed.release();
    if (index == 12) laterFailed.acquire();
    if (index == 30 || index == 12) throw RunError("data-broken", std::to_string(index));
    out[0] = 0;
    return index;
  }
  mutable std::binary_semaphore laterFailed{0};
};

TEST_CASE("the first sample that cannot be read is reported, in whatever order they fail") {
  for (const std::uint32_t batch : {10u, 40u}) {
    Loader loader(std::make_shared<FailingTwice>(), newPool(),
                  {.batch = batch, .ahead = 5, .threads = 2});
    if (batch == 10) CHECK(labelsOf(*loader.next()).back() == 9);
    CHECK_THROWS_WITH(loader.next(), "12");
    CHECK_THROWS_WITH(loader.next(), "12");
  }
}

TEST_CASE("batches before the failing sample are delivered by several threads too") {
  for (int round = 0; round < 20; ++round) {
    auto data = std::make_shared<Counting>(100);
    data->failAt = 25;
    Loader loader(data, newPool(), {.batch = 10, .ahead = 4, .threads = 4});
    CHECK(labelsOf(*loader.next()).front() == 0);
    CHECK(labelsOf(*loader.next()).front() == 10);
    CHECK_THROWS_WITH(loader.next(), "sample 25 is broken");
  }
}

TEST_CASE("a loader with several threads can be destroyed at any time") {
  for (int round = 0; round < 50; ++round) {
    auto data = std::make_shared<Counting>(1000);
    Loader loader(data, newPool(), {.batch = 100, .ahead = 2, .threads = 4});
    if (round % 2 == 0) loader.next();
  }
}

// A dataset that records the threads that read samples. Each read takes the given time.
class Timed final : public LabeledDataset {
 public:
  explicit Timed(double seconds) : seconds_(seconds) {}
  std::uint32_t size() const override { return 100; }
  std::vector<std::int64_t> sampleShape() const override { return {1}; }
  int classes() const override { return 100; }
  std::int64_t read(std::uint32_t index, std::span<float> out) const override {
    const SteadyTime start = now();
    while (secondsSince(start) < seconds_) std::this_thread::yield();
    const std::lock_guard lock(mutex_);
    threads_.insert(std::this_thread::get_id());
    out[0] = 0;
    return index;
  }
  std::size_t threads() const {
    const std::lock_guard lock(mutex_);
    return threads_.size();
  }

 private:
  double seconds_;
  mutable std::mutex mutex_;
  mutable std::set<std::thread::id> threads_;
};

TEST_CASE("by default, more than one thread is used only for costly samples") {
  for (const double seconds : {0.0, 2e-3}) {
    const auto data = std::make_shared<Timed>(seconds);
    Loader loader(data, newPool(), {.batch = 50, .threads = 0});
    while (loader.next()) continue;
    CHECK((data->threads() > 1) == (seconds > 0 && usableCores() > 1));
  }
}

// ---- Balanced classes ----

// A dataset in which sample j has the class j % 10 == 0. Its values are j and the two halves of the
// epoch in which it was read.
class Epochs final : public LabeledDataset {
 public:
  std::uint32_t size() const override { return 40; }
  std::vector<std::int64_t> sampleShape() const override { return {3}; }
  int classes() const override { return 2; }
  std::int64_t read(std::uint32_t index, std::span<float>) const override {
    return index % 10 == 0 ? 1 : 0;
  }
  std::int64_t readForTraining(std::uint32_t index, std::uint64_t epoch,
                               std::span<float> out) const override {
    out[0] = static_cast<float>(index);
    out[1] = static_cast<float>(epoch >> 32);
    out[2] = static_cast<float>(epoch & 0xFFFFFFFF);
    return read(index, out);
  }
};

TEST_CASE("a pass with repeated samples counts how often each has occurred") {
  const auto data = std::make_shared<Epochs>();
  const auto classes = std::make_shared<const SamplesByClass>(samplesByClass(*data, "test"));
  const std::vector<std::uint32_t> expected = drawBalanced(*classes, 40, 3, 7);
  for (const std::uint32_t first : {0u, 2u}) {
    Loader loader(data, newPool(),
                  {.batch = 8, .order = expected, .epoch = 7, .firstBatch = first});
    std::map<std::uint32_t, int> draws;
    for (std::size_t n = 0; n < std::size_t{8} * first; ++n) ++draws[expected[n]];
    std::size_t position = std::size_t{8} * first;
    while (const auto batch = loader.next()) {
      for (std::size_t n = 0; n < batch->samples(); ++n, ++position) {
        const auto values = valuesOf(*batch).subspan(3 * n, 3);
        CHECK(values[0] == static_cast<float>(expected[position]));
        CHECK(values[1] == static_cast<float>(draws[expected[position]]++));
        CHECK(values[2] == 7);
      }
    }
    CHECK(position == 40);
    CHECK(draws[0] + draws[10] + draws[20] + draws[30] > 10);  // 20 draws are expected
  }
}

TEST_CASE("a batch of 0 is refused") {
  CHECK_THROWS_AS(Loader(std::make_shared<Counting>(3), newPool(), {.batch = 0}), UsageError);
  CHECK_THROWS_AS(Loader(std::make_shared<Counting>(3), newPool(), {.batch = 1, .ahead = 0}),
                  UsageError);
}

}  // namespace
}  // namespace cleave::test
