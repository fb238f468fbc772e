// Parts of datasets: subsets by class, folds, and balanced draws.
#include "client/data/samples/subset.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "client/data/samples/images.h"
#include "common/core/random.h"
#include "tests/support/error_code.h"
#include "tests/support/files/samples.h"

namespace cleave::test {
namespace {

// Sample j is the number j; its target is labels[j].
class Labels final : public Dataset {
 public:
  explicit Labels(std::vector<std::int64_t> labels, int classes = 0, bool isCheap = true)
      : labels_(std::move(labels)), classes_(classes), isCheap_(isCheap) {}

  std::uint32_t size() const override { return static_cast<std::uint32_t>(labels_.size()); }
  std::vector<SampleArray> arrays() const override { return {{"", DType::f32}, {"", DType::i64}}; }
  int classes() const override { return classes_; }
  std::vector<std::string> classNames() const override { return {"cat", "dog"}; }
  std::string sampleName(std::uint32_t index) const override { return std::to_string(index); }
  std::optional<std::int64_t> label(std::uint32_t index) const override {
    return isCheap_ ? std::optional(labels_[index]) : std::nullopt;
  }
  void write(std::uint32_t index, std::optional<std::uint64_t>, SampleMemory out) const override {
    const auto value = static_cast<float>(index);
    std::memcpy(out[0].data(), &value, sizeof value);
    std::memcpy(out[1].data(), &labels_[index], sizeof labels_[index]);
  }

 private:
  std::vector<std::int64_t> labels_;
  int classes_;
  bool isCheap_;
};

// 60 samples of class 0, 30 of class 1 and 10 of class 2, in mixed order.
Labels uneven() {
  std::vector<std::int64_t> labels;
  for (int n = 0; n < 100; ++n) labels.push_back(n % 10 == 0 ? 2 : n % 10 < 4 ? 1 : 0);
  return Labels(labels, 3);
}

std::map<std::int64_t, int> countsOf(const Dataset& data, const std::vector<std::uint32_t>& all) {
  std::map<std::int64_t, int> counts;
  for (const std::uint32_t index : all) ++counts[*data.label(index)];
  return counts;
}

TEST_CASE("samples are grouped by label, whether or not reading a label is cheap") {
  const SamplesByClass expected = {{0, {1, 3}}, {1, {0}}, {2, {}}, {3, {2}}};
  CHECK(samplesByClass(Labels({1, 0, 3, 0}, 4), "k") == expected);
  CHECK(samplesByClass(Labels({1, 0, 3, 0}, 4, false), "k") == expected);
  const SamplesByClass found = {{5, {0, 2}}, {70000, {1}}};
  CHECK(samplesByClass(Labels({5, 70000, 5}), "k") == found);
}

TEST_CASE("targets that are not classes are refused") {
  class Numbers final : public Dataset {
   public:
    std::uint32_t size() const override { return 1; }
    std::vector<SampleArray> arrays() const override { return {{"", DType::f32}, target}; }
    int classes() const override { return 0; }
    void write(std::uint32_t, std::optional<std::uint64_t>, SampleMemory) const override {}
    SampleArray target = {"", DType::f32};
  };
  Numbers numbers;
  const auto code = [](const Dataset& data) {
    return errorCode([&] { samplesByClass(data, "folds"); });
  };
  CHECK(code(numbers) == "bad-subset");
  numbers.target = {"", DType::i64, {3}};
  CHECK(code(numbers) == "bad-subset");
  CHECK(code(Labels({0, -100})) == "bad-subset");
  CHECK(code(Labels({0, 2}, 2)) == "bad-subset");
  CHECK(code(Labels({0, 1}, 2)) == "");
}

TEST_CASE("a subset has the same number of samples of each class, chosen by the seed") {
  const Labels data = uneven();
  const SamplesByClass classes = samplesByClass(data, "k");
  const auto chosen = samplesPerClass(data, classes, 7, 1);
  CHECK(countsOf(data, chosen) == std::map<std::int64_t, int>{{0, 7}, {1, 7}, {2, 7}});
  CHECK(std::is_sorted(chosen.begin(), chosen.end()));
  CHECK(std::set(chosen.begin(), chosen.end()).size() == 21);
  CHECK(samplesPerClass(data, classes, 7, 1) == chosen);
  CHECK(samplesPerClass(data, classes, 7, 2) != chosen);
  CHECK(samplesPerClass(data, classes, 10, 1).size() == 30);
  CHECK(errorCode([&] { samplesPerClass(data, classes, 11, 1); }) == "bad-subset");
  // A larger subset contains the smaller one.
  const auto larger = samplesPerClass(data, classes, 8, 1);
  CHECK(std::includes(larger.begin(), larger.end(), chosen.begin(), chosen.end()));
}

TEST_CASE("a class without samples is refused by name") {
  const Labels data({0, 0, 0}, 2);
  const SamplesByClass classes = samplesByClass(data, "k");
  CHECK(errorCode([&] { samplesPerClass(data, classes, 1, 1); }) == "bad-subset");
  CHECK(errorCode([&] { splitFolds(data, classes, 2, 1, 1); }) == "bad-subset");
  CHECK_THAT(errorText([&] { splitFolds(data, classes, 2, 1, 1); }), Catch::Contains("dog"));
}

TEST_CASE("folds divide every class evenly, and each sample is in one of them") {
  const Labels data = uneven();
  const SamplesByClass classes = samplesByClass(data, "k");
  for (const std::uint32_t folds : {2u, 3u, 7u, 10u}) {
    std::vector<std::uint32_t> all;
    for (std::uint32_t fold = 1; fold <= folds; ++fold) {
      const FoldSplit split = splitFolds(data, classes, folds, fold, 4);
      CHECK(split.train.size() + split.evaluation.size() == 100);
      CHECK((split.evaluation.size() == 100 / folds || split.evaluation.size() == 100 / folds + 1));
      CHECK(std::is_sorted(split.train.begin(), split.train.end()));
      std::vector<std::uint32_t> both;
      std::set_intersection(split.train.begin(), split.train.end(), split.evaluation.begin(),
                            split.evaluation.end(), std::back_inserter(both));
      CHECK(both.empty());
      for (const auto& [label, count] : countsOf(data, split.evaluation)) {
        const int samples = static_cast<int>(classes.at(label).size());
        CHECK(count >= samples / static_cast<int>(folds));
        CHECK(count <= samples / static_cast<int>(folds) + 1);
      }
      all.insert(all.end(), split.evaluation.begin(), split.evaluation.end());
    }
    std::sort(all.begin(), all.end());
    CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
    CHECK(all.size() == 100);
  }
  CHECK(splitFolds(data, classes, 5, 1, 4).evaluation ==
        splitFolds(data, classes, 5, 1, 4).evaluation);
  CHECK(splitFolds(data, classes, 5, 1, 4).evaluation !=
        splitFolds(data, classes, 5, 1, 5).evaluation);
  CHECK(errorCode([&] { splitFolds(data, classes, 11, 1, 4); }) == "bad-subset");
}

TEST_CASE("balanced draws take each class equally often, and each sample of a class") {
  const Labels data = uneven();
  SamplesByClass classes = samplesByClass(data, "k");
  classes[3] = {};  // a class without samples, which is never drawn
  const auto drawn = drawBalanced(classes, 3000, 1, 1);
  for (const auto& [label, count] : countsOf(data, drawn)) {
    CHECK(std::abs(count - 1000) < 150);  // 5.8 standard deviations
  }
  CHECK(std::set(drawn.begin(), drawn.end()).size() == 100);
  CHECK(drawBalanced(classes, 3000, 1, 1) == drawn);
  CHECK(drawBalanced(classes, 3000, 2, 1) != drawn);
  CHECK(drawBalanced(classes, 3000, 1, 2) != drawn);
}

TEST_CASE("classes that only one of the sets has are named") {
  CHECK(missingClassWarnings(Labels({0, 1}, 5), Labels({1, 0, 0}, 5)).empty());
  CHECK(missingClassWarnings(Labels({0, 1}, 2), Labels({0}, 2)) ==
        std::vector<std::string>{"no evaluation sample has the class dog, so no score covers it"});
  CHECK(missingClassWarnings(Labels({1}, 3), Labels({0, 2}, 3)) ==
        std::vector<std::string>{
            "no training sample has the classes cat, 2, so the model cannot learn them",
            "no evaluation sample has the class dog, so no score covers it"});
  CHECK(missingClassWarnings(Labels({0, -100}), Labels({0})).empty());  // an ignored target
  CHECK(missingClassWarnings(Labels({0}, 2, false), Labels({1}, 2, false)).empty());
}

TEST_CASE("picked samples equal the samples of the whole dataset") {
  const auto whole = std::make_shared<Labels>(std::vector<std::int64_t>{7, 8, 9});
  const auto picked = pickSamples(whole, {2, 0});
  REQUIRE(picked->size() == 2);
  CHECK(sampleOf(*picked, 0).values == std::vector<float>{2});
  CHECK(sampleOf(*picked, 0).label == 9);
  CHECK(picked->label(1) == 7);
  CHECK(picked->sampleName(0) == "2");
  CHECK(picked->classNames() == whole->classNames());
}

TEST_CASE("datasets in memory read labels without reading the sample") {
  ImageStore store;
  store.shape = {1, 1, 1};
  store.stride = 1;
  store.bytes = {1, 2, 3};
  store.labels = {4, 0, 2};
  store.classes = 5;
  const std::shared_ptr<const Dataset> images = makeImages(std::move(store), {});
  CHECK(images->label(0) == 4);
  CHECK(sliceDataset(images, 1, 2)->label(1) == 2);
  const auto made = makeSynthetic({.shape = {2}, .classes = 3, .size = 20});
  for (std::uint32_t n = 0; n < 20; ++n) CHECK(made->label(n) == labelOf(*made, n));
}

}  // namespace
}  // namespace cleave::test
