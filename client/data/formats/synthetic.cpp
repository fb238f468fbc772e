#include <algorithm>
#include <cassert>

#include "client/data/samples/dataset.h"
#include "common/core/random.h"

namespace cleave {
namespace {

std::size_t elementsOf(const std::vector<std::int64_t>& shape) {
  std::size_t elements = 1;
  for (const std::int64_t dimension : shape) elements *= static_cast<std::size_t>(dimension);
  return elements;
}

// Every value depends only on (seed, split, index), not on the order of reads or the thread.
class Synthetic final : public LabeledDataset {
 public:
  explicit Synthetic(const SyntheticOptions& options)
      : options_(options), elements_(elementsOf(options.shape)) {
    const auto classes = static_cast<std::uint32_t>(options_.classes);
    patterns_.resize(elements_ * classes);
    for (std::uint32_t c = 0; c < classes; ++c) {
      fillNormal(randomKey(options_.seed, "pattern", {c}), pattern(c));
    }
    // Labels are permuted indices modulo the number of classes: class sizes differ by at most one.
    labels_ = randomPermutation(randomKey(options_.seed, "label", {options_.split}), options_.size);
    for (std::uint32_t& label : labels_) label %= classes;
  }

  std::uint32_t size() const override { return options_.size; }
  std::vector<std::int64_t> sampleShape() const override { return options_.shape; }
  int classes() const override { return options_.classes; }
  std::optional<std::int64_t> label(std::uint32_t index) const override { return labels_[index]; }

  std::int64_t read(std::uint32_t index, std::span<float> out) const override {
    assert(index < size() && out.size() == elements_);
    fillNormal(randomKey(options_.seed, "sample", {options_.split, index}), out);
    const float* pattern = patterns_.data() + labels_[index] * elements_;
    const auto noise = static_cast<float>(options_.noise);
    for (std::size_t j = 0; j < out.size(); ++j) out[j] = pattern[j] + noise * out[j];
    return labels_[index];
  }

 private:
  std::span<float> pattern(std::uint32_t c) {
    return std::span(patterns_).subspan(c * elements_, elements_);
  }

  SyntheticOptions options_;
  std::size_t elements_;               // per sample
  std::vector<float> patterns_;        // [classes, elements]
  std::vector<std::uint32_t> labels_;  // by index
};

}  // namespace

std::unique_ptr<LabeledDataset> makeSynthetic(const SyntheticOptions& options) {
  const bool positive = std::all_of(options.shape.begin(), options.shape.end(),
                                    [](std::int64_t dimension) { return dimension > 0; });
  if (options.shape.empty() || !positive || options.classes < 1) {
    throw UsageError(
        "data-shape",
        "synthetic data requires a sample shape with positive dimensions and at least one class",
        "correct the shape or the number of classes in the configuration");
  }
  if (options.size == 0) {
    throw UsageError("data-empty", "the synthetic data has 0 samples",
                     "configure at least one sample");
  }
  return std::make_unique<Synthetic>(options);
}

}  // namespace cleave
