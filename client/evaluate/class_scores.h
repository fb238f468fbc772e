// Computes a classifier's scores: confusion, calibration, and per class precision, recall and the
// area under the ROC curve. Does not use Torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cleave {

// The softmax of one sample's outputs. Throws RunError "non-finite" if the outputs are not finite.
std::vector<double> softmax(std::span<const float> outputs);

class ClassScores {
 public:
  explicit ClassScores(std::size_t classes);

  // Adds one sample: the model's outputs, and its class in [0, classes).
  void add(std::span<const float> outputs, std::int64_t target);

  struct Class {
    std::uint64_t samples = 0;    // samples of this class
    std::uint64_t predicted = 0;  // samples predicted as this class
    std::uint64_t correct = 0;
    // Empty if the denominator is 0.
    std::optional<double> precision() const;
    std::optional<double> recall() const;
    std::optional<double> f1() const;
  };
  std::vector<Class> classes() const;
  // The number of samples of class `target` that were predicted as `predicted`.
  std::uint64_t confused(std::size_t target, std::size_t predicted) const;
  // The probability that a random sample of the class gets a higher probability for it than a
  // random sample of another class (Hand and Till, 2001: A(i|rest)); ties count as a half. Empty if
  // all samples or no samples are of the class, or if there are too many scores to keep.
  std::optional<double> auroc(std::size_t wanted) const;

  // Samples whose highest probability, the confidence, is in one of kBins equal ranges.
  struct Bin {
    std::uint64_t samples = 0;
    double confidence = 0;  // sum over the samples
    std::uint64_t correct = 0;
  };
  static constexpr std::size_t kBins = 15;
  const std::vector<Bin>& calibration() const { return bins_; }
  // The expected calibration error: the mean of |accuracy - confidence| over the samples, by bin
  // (Naeini et al., 2015).
  double calibrationError() const;

  std::uint64_t samples() const { return samples_; }
  // `names`: the names of the classes. A class without a name is identified by its number.
  nlohmann::ordered_json toJson(const std::vector<std::string>& names) const;

 private:
  std::size_t classes_;
  std::uint64_t samples_ = 0;
  // Numbers of samples, by target and predicted class.
  std::map<std::pair<std::size_t, std::size_t>, std::uint64_t> confusion_;
  std::vector<Bin> bins_;
  // The scores of all samples, for auroc(); cleared when there are too many.
  bool keepsScores_ = true;
  std::vector<float> probabilities_;  // [samples, classes]
  std::vector<std::int64_t> targets_;
};

}  // namespace cleave
