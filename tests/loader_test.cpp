// The order of a pass, its batches, how far the loader works ahead, and how it ends.
#include "client/data/loader.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdint>
#include <numeric>
#include <semaphore>
#include <thread>

#include "common/core/random.h"
#include "tests/samples.h"

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
  mutable std::counting_semaphore<> arrived{0};  // one per started read
  mutable std::counting_semaphore<> gate{0};     // one per read that may continue
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
    for (std::size_t j = 0; j < those.size(); ++j) {
      REQUIRE(values[2 * j] == static_cast<float>(those[j]));
      REQUIRE(values[2 * j + 1] == -static_cast<float>(those[j]));
    }
    labels.insert(labels.end(), those.begin(), those.end());
  }
  return labels;
}

std::vector<std::int64_t> passOf(std::uint32_t size, const Loader::Options& options) {
  Loader loader(std::make_shared<Counting>(size), newPool(), options);
  return passLabels(loader, options.batch, size);
}

TEST_CASE("a pass has every sample once, in order, and a smaller last batch") {
  for (const std::uint32_t size : {1u, 7u, 8u, 9u, 50u}) {
    std::vector<std::int64_t> expected(size);
    std::iota(expected.begin(), expected.end(), 0);
    CHECK(passOf(size, {.batch = 8}) == expected);
    CHECK(passOf(size, {.batch = 8, .ahead = 1}) == expected);
  }
}

TEST_CASE("the count of batches includes the smaller last one") {
  CHECK(Loader::batches(Counting(16), 8) == 2);
  CHECK(Loader::batches(Counting(17), 8) == 3);
  CHECK(Loader::batches(Counting(1), 8) == 1);
  CHECK(Loader::batches(Counting(0xFFFFFFFF), 0xFFFFFFFE) == 2);
}

TEST_CASE("a shuffled pass follows the permutation of its seed and epoch") {
  const Loader::Options options = {.batch = 8, .shuffle = true, .seed = 5, .epoch = 3};
  const auto labels = passOf(100, options);
  const auto expected = randomPermutation(randomKey(5, "shuffle", {3}), 100);
  CHECK(std::equal(labels.begin(), labels.end(), expected.begin(), expected.end()));
  auto sorted = labels;
  std::sort(sorted.begin(), sorted.end());
  CHECK(sorted == passOf(100, {.batch = 8}));
  CHECK(sorted != labels);
}

TEST_CASE("a shuffle is the same only for the same seed and epoch") {
  const Loader::Options options = {.batch = 8, .shuffle = true, .seed = 5, .epoch = 3};
  const auto labels = passOf(100, options);
  CHECK(passOf(100, options) == labels);
  Loader::Options other = options;
  other.epoch = 4;
  CHECK(passOf(100, other) != labels);
  other = options;
  other.seed = 6;
  CHECK(passOf(100, other) != labels);
  other = options;
  other.batch = 32;  // changes the batches, not the order
  CHECK(passOf(100, other) == labels);
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
      data->arrived.acquire();  // would hang if the loader did not work ahead
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

TEST_CASE("buffers are from the pool and outlive the loader") {
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

TEST_CASE("a batch of 0 is refused") {
  CHECK_THROWS_AS(Loader(std::make_shared<Counting>(3), newPool(), {.batch = 0}), UsageError);
  CHECK_THROWS_AS(Loader(std::make_shared<Counting>(3), newPool(), {.batch = 1, .ahead = 0}),
                  UsageError);
}

}  // namespace
}  // namespace cleave::test
