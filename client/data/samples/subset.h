// Selects parts of datasets by class. No Torch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "client/data/samples/dataset.h"

namespace cleave {

// Maps each class to its samples, in the dataset's order. If Dataset::classes() is not 0, all
// classes have an entry; otherwise only the classes that occur.
using SamplesByClass = std::map<std::int64_t, std::vector<std::uint32_t>>;

// Reads whole samples if the dataset has no cheap label(). Throws UsageError "bad-subset" if the
// target is not a class. `key` is the configuration key that requires classes, without its prefix
// `data.`.
SamplesByClass samplesByClass(const Dataset& data, const std::string& key);

// Chooses `count` random samples of each class, in the dataset's order. Throws UsageError
// "bad-subset" if a class has fewer samples.
std::vector<std::uint32_t> samplesPerClass(const Dataset& data, const SamplesByClass& classes,
                                           std::uint32_t count, std::uint64_t seed);

// Divides the samples of each class randomly and evenly into `folds` parts, whose sizes differ by
// at most one.
struct FoldSplit {
  std::vector<std::uint32_t> train;       // the other folds, in the dataset's order
  std::vector<std::uint32_t> evaluation;  // the fold
};
// `fold` in 1 … folds. Throws UsageError "bad-subset" if a class has fewer samples than folds.
FoldSplit splitFolds(const Dataset& data, const SamplesByClass& classes, std::uint32_t folds,
                     std::uint32_t fold, std::uint64_t seed);

// The order of a training set of this size whose last samples are held out: random, but the same
// for every seed, so that no run trains on samples that another run of the same data evaluates.
std::vector<std::uint32_t> holdoutOrder(std::uint32_t size);

// A warning for each of the sets that lacks classes of the other one. None if the target is not a
// class, or if reading the classes is slow.
std::vector<std::string> missingClassWarnings(const Dataset& train, const Dataset& evaluation);

// Draws `count` samples with replacement, keyed by (seed, "balanced", epoch). A draw chooses a
// random non-empty class, then a random sample of that class.
std::vector<std::uint32_t> drawBalanced(const SamplesByClass& classes, std::uint32_t count,
                                        std::uint64_t seed, std::uint64_t epoch);

// A dataset of these samples of `whole`, in this order.
std::unique_ptr<Dataset> pickSamples(std::shared_ptr<const Dataset> whole,
                                     std::vector<std::uint32_t> indices);

}  // namespace cleave
