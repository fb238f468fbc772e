#include "client/data/samples/subset.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "client/data/samples/sample_buffer.h"
#include "common/core/printable.h"
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
  void identify(std::uint32_t index, Sha256& digest) const override {
    whole_->identify(indices_[index], digest);
  }
  void identifyContent(std::uint32_t index, Sha256& digest) const override {
    whole_->identifyContent(indices_[index], digest);
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
  throw UsageError("bad-subset", fault, hint).about("data." + key);
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

// The classes that occur. Empty if the target is not a class, or if reading the classes is slow.
std::optional<std::set<std::int64_t>> classesIn(const Dataset& data) {
  constexpr std::size_t kMax = 1 << 16;  // more are probably not classes
  std::set<std::int64_t> classes;
  for (std::uint32_t index = 0; index < data.size(); ++index) {
    const std::optional<std::int64_t> label = data.label(index);
    if (!label || classes.size() > kMax) return std::nullopt;
    if (*label >= 0) classes.insert(*label);
  }
  return classes;
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

std::vector<std::uint32_t> holdoutOrder(std::uint32_t size) {
  return randomPermutation(randomKey(0, "holdout"), size);
}

std::vector<std::string> missingClassWarnings(const Dataset& train, const Dataset& evaluation) {
  const std::optional<std::set<std::int64_t>> trained = classesIn(train);
  const std::optional<std::set<std::int64_t>> evaluated = classesIn(evaluation);
  std::vector<std::string> warnings;
  if (!trained || !evaluated) return warnings;
  const auto compare = [&](const std::set<std::int64_t>& present,
                           const std::set<std::int64_t>& other, const std::string& set,
                           const std::string& effect) {
    std::vector<std::int64_t> missing;
    std::set_difference(other.begin(), other.end(), present.begin(), present.end(),
                        std::back_inserter(missing));
    if (missing.empty()) return;
    constexpr std::size_t kShown = 8;
    std::string names;
    for (std::size_t n = 0; n < std::min(missing.size(), kShown); ++n) {
      const auto label = static_cast<std::size_t>(missing[n]);
      names += (n == 0 ? "" : ", ") + printable(classNameOf(train.classNames(), label));
    }
    if (missing.size() > kShown)
      names += " and " + std::to_string(missing.size() - kShown) + " more";
    const bool isOne = missing.size() == 1;
    warnings.push_back("no " + set + " sample has the " + (isOne ? "class " : "classes ") + names +
                       ", so " + effect + (isOne ? " it" : " them"));
  };
  compare(*trained, *evaluated, "training", "the model cannot learn");
  compare(*evaluated, *trained, "evaluation", "no score covers");
  return warnings;
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
