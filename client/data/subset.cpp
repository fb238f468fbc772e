#include "client/data/subset.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "client/data/sample_buffer.h"
#include "common/core/random.h"
#include "common/core/units.h"

namespace cleave {
namespace {

class Picked final : public Dataset {
 public:
  Picked(std::shared_ptr<const Dataset> whole, std::vector<std::uint32_t> indices)
      : whole_(std::move(whole)), indices_(std::move(indices)) {}

  std::uint32_t size() const override { return static_cast<std::uint32_t>(indices_.size()); }
  std::vector<SampleArray> arrays() const override { return whole_->arrays(); }
  int classes() const override { return whole_->classes(); }
  std::vector<std::string> classNames() const override { return whole_->classNames(); }
  std::string sampleName(std::uint32_t index) const override {
    return whole_->sampleName(indices_[index]);
  }
  nlohmann::json learned() const override { return whole_->learned(); }
  std::optional<std::int64_t> label(std::uint32_t index) const override {
    return whole_->label(indices_[index]);
  }
  void write(std::uint32_t index, std::optional<std::uint64_t> epoch,
             SampleMemory out) const override {
    assert(index < indices_.size());
    whole_->write(indices_[index], epoch, out);
  }

 private:
  std::shared_ptr<const Dataset> whole_;
  std::vector<std::uint32_t> indices_;
};

[[noreturn]] void refuse(const std::string& key, const std::string& fault,
                         const std::string& hint) {
  throw UsageError("bad-subset", fault, hint).about(key);
}

void checkSizes(const Dataset& data, const SamplesByClass& classes, std::uint32_t min,
                const std::string& key) {
  for (const auto& [label, samples] : classes) {
    if (samples.size() >= min) continue;
    refuse(key,
           "the class " + classNameOf(data.classNames(), static_cast<std::size_t>(label)) +
               " has " + countText(samples.size(), "sample") + ", fewer than " +
               std::to_string(min),
           samples.size() < 2 ? "add samples of this class, or remove it"
                              : "set data." + key + " to at most " +
                                    std::to_string(samples.size()) + ", or remove the class");
  }
}

// The samples of a class in an order that depends only on the seed and the class.
std::vector<std::uint32_t> shuffled(const std::vector<std::uint32_t>& samples, std::uint64_t seed,
                                    const char* purpose, std::int64_t label) {
  const RandomKey key = randomKey(seed, purpose, {static_cast<std::uint64_t>(label)});
  std::vector<std::uint32_t> order =
      randomPermutation(key, static_cast<std::uint32_t>(samples.size()));
  for (std::uint32_t& each : order) each = samples[each];
  return order;
}

}  // namespace

SamplesByClass samplesByClass(const Dataset& data, const std::string& key) {
  const SampleArray target = data.arrays().back();
  if (target.dtype != DType::i64 || !target.shape.empty()) {
    refuse(key, "the data has no classes: its target is " + toString(target), "remove data." + key);
  }
  SamplesByClass classes;
  for (std::int64_t c = 0; c < data.classes(); ++c) classes[c];
  SampleBuffer sample(data);
  const auto labelOf = [&](std::uint32_t index) {
    if (const auto label = data.label(index)) return *label;
    sample.read(data, index);
    return sample.label();
  };
  for (std::uint32_t index = 0; index < data.size(); ++index) {
    const std::int64_t label = labelOf(index);
    if (label < 0 || (data.classes() > 0 && label >= data.classes())) {
      refuse(key,
             "the target of " + data.sampleName(index) + " is " + std::to_string(label) +
                 ", which is not a class",
             "remove data." + key + ", or that sample");
    }
    classes[label].push_back(index);
  }
  return classes;
}

std::vector<std::uint32_t> samplesPerClass(const Dataset& data, const SamplesByClass& classes,
                                           std::uint32_t count, std::uint64_t seed) {
  checkSizes(data, classes, count, "train.per_class");
  std::vector<std::uint32_t> chosen;
  for (const auto& [label, samples] : classes) {
    const std::vector<std::uint32_t> order = shuffled(samples, seed, "per_class", label);
    chosen.insert(chosen.end(), order.begin(), order.begin() + count);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

FoldSplit splitFolds(const Dataset& data, const SamplesByClass& classes, std::uint32_t folds,
                     std::uint32_t fold, std::uint64_t seed) {
  assert(fold >= 1 && fold <= folds);
  checkSizes(data, classes, folds, "folds");
  FoldSplit split;
  // The first fold of a class follows the last fold of the previous class, so that the folds' total
  // sizes are even too.
  std::uint64_t dealt = 0;
  for (const auto& [label, samples] : classes) {
    for (const std::uint32_t index : shuffled(samples, seed, "folds", label)) {
      const bool isEvaluation = dealt++ % folds == fold - 1;
      (isEvaluation ? split.evaluation : split.train).push_back(index);
    }
  }
  std::sort(split.train.begin(), split.train.end());
  std::sort(split.evaluation.begin(), split.evaluation.end());
  return split;
}

std::vector<std::uint32_t> drawBalanced(const SamplesByClass& classes, std::uint32_t count,
                                        std::uint64_t seed, std::uint64_t epoch) {
  std::vector<const std::vector<std::uint32_t>*> filled;
  for (const auto& [label, samples] : classes) {
    if (!samples.empty()) filled.push_back(&samples);
  }
  const RandomKey key = randomKey(seed, "balanced", {epoch});
  std::vector<std::uint32_t> drawn(count);
  for (std::uint64_t n = 0; n < count; ++n) {
    // The bias of the modulus is below 2^-32.
    const std::vector<std::uint32_t>& samples = *filled[randomBits(key, 2 * n) % filled.size()];
    drawn[n] = samples[randomBits(key, 2 * n + 1) % samples.size()];
  }
  return drawn;
}

std::unique_ptr<Dataset> pickSamples(std::shared_ptr<const Dataset> whole,
                                     std::vector<std::uint32_t> indices) {
  return std::make_unique<Picked>(std::move(whole), std::move(indices));
}

}  // namespace cleave
