#include "client/evaluate/class_scores.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "client/data/samples/dataset.h"
#include "common/core/error.h"

namespace cleave {
namespace {

constexpr std::size_t kMaxScores = 50'000'000;  // 200 MB

std::optional<double> shareOf(std::uint64_t part, std::uint64_t whole) {
  if (whole == 0) return std::nullopt;
  return static_cast<double>(part) / static_cast<double>(whole);
}

nlohmann::json valueOrNull(const std::optional<double>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

}  // namespace

std::vector<double> softmax(std::span<const float> outputs) {
  const double largest = *std::max_element(outputs.begin(), outputs.end());
  std::vector<double> values;
  for (const float output : outputs) values.push_back(std::exp(double{output} - largest));
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  if (!std::isfinite(sum)) {
    throw RunError("non-finite", "the model's output for a sample is not finite",
                   "evaluate an earlier model, such as that of keep.best; training has diverged");
  }
  for (double& value : values) value /= sum;
  return values;
}

ClassScores::ClassScores(std::size_t classes) : classes_(classes), bins_(kBins) {}

void ClassScores::add(std::span<const float> outputs, std::int64_t target) {
  const std::vector<double> probabilities = softmax(outputs);
  const auto highest = std::max_element(probabilities.begin(), probabilities.end());
  const auto predicted = static_cast<std::size_t>(highest - probabilities.begin());
  const bool isCorrect = predicted == static_cast<std::size_t>(target);
  ++samples_;
  ++confusion_[{static_cast<std::size_t>(target), predicted}];
  Bin& bin = bins_[std::min(static_cast<std::size_t>(*highest * kBins), kBins - 1)];
  ++bin.samples;
  bin.confidence += *highest;
  bin.correct += isCorrect ? 1 : 0;
  if (!keepsScores_) return;
  if (probabilities_.size() + classes_ > kMaxScores) {
    keepsScores_ = false;
    probabilities_ = {};
    targets_ = {};
    return;
  }
  probabilities_.insert(probabilities_.end(), probabilities.begin(), probabilities.end());
  targets_.push_back(target);
}

std::optional<double> ClassScores::Class::precision() const { return shareOf(correct, predicted); }
std::optional<double> ClassScores::Class::recall() const { return shareOf(correct, samples); }
std::optional<double> ClassScores::Class::f1() const {
  return shareOf(2 * correct, samples + predicted);
}

std::vector<ClassScores::Class> ClassScores::classes() const {
  std::vector<Class> all(classes_);
  for (const auto& [pair, count] : confusion_) {
    const auto& [target, predicted] = pair;
    all[target].samples += count;
    all[predicted].predicted += count;
    if (target == predicted) all[target].correct = count;
  }
  return all;
}

std::uint64_t ClassScores::confused(std::size_t target, std::size_t predicted) const {
  const auto found = confusion_.find({target, predicted});
  return found == confusion_.end() ? 0 : found->second;
}

std::optional<double> ClassScores::auroc(std::size_t wanted) const {
  // For each sample: the probability of the class, and whether the sample has the class.
  std::vector<std::pair<float, bool>> scores;
  for (std::size_t n = 0; n < targets_.size(); ++n) {
    scores.emplace_back(probabilities_[n * classes_ + wanted],
                        targets_[n] == static_cast<std::int64_t>(wanted));
  }
  std::sort(scores.begin(), scores.end());
  double positives = 0, negatives = 0, pairs = 0;  // pairs: number of pairs in the right order
  for (std::size_t first = 0; first < scores.size();) {
    double equalPositives = 0, equalNegatives = 0;
    std::size_t last = first;
    for (; last < scores.size() && scores[last].first == scores[first].first; ++last) {
      ++(scores[last].second ? equalPositives : equalNegatives);
    }
    pairs += equalPositives * (negatives + equalNegatives / 2);
    positives += equalPositives;
    negatives += equalNegatives;
    first = last;
  }
  if (positives == 0 || negatives == 0) return std::nullopt;
  return pairs / (positives * negatives);
}

double ClassScores::calibrationError() const {
  double error = 0;
  for (const Bin& bin : bins_) {
    error += std::abs(static_cast<double>(bin.correct) - bin.confidence);
  }
  return samples_ == 0 ? 0 : error / static_cast<double>(samples_);
}

nlohmann::ordered_json ClassScores::toJson(const std::vector<std::string>& names) const {
  constexpr std::size_t kMaxMatrix = 200, kMaxPairs = 20;
  nlohmann::ordered_json json;
  json["classes"] = nlohmann::json::array();
  std::vector<std::tuple<std::uint64_t, std::size_t, std::size_t>> pairs;
  const std::vector<Class> all = classes();
  for (std::size_t c = 0; c < classes_; ++c) {
    json["classes"].push_back(nlohmann::ordered_json{{"name", classNameOf(names, c)},
                                                     {"samples", all[c].samples},
                                                     {"predicted", all[c].predicted},
                                                     {"precision", valueOrNull(all[c].precision())},
                                                     {"recall", valueOrNull(all[c].recall())},
                                                     {"f1", valueOrNull(all[c].f1())},
                                                     {"auroc", valueOrNull(auroc(c))}});
  }
  for (std::size_t c = 0; c < classes_ && classes_ <= kMaxMatrix; ++c) {
    std::vector<std::uint64_t> row;
    for (std::size_t p = 0; p < classes_; ++p) row.push_back(confused(c, p));
    json["confusion"].push_back(row);
  }
  for (const auto& [pair, count] : confusion_) {
    if (pair.first != pair.second) pairs.emplace_back(count, pair.first, pair.second);
  }
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const auto& a, const auto& b) { return std::get<0>(a) > std::get<0>(b); });
  json["most_confused"] = nlohmann::json::array();
  for (std::size_t n = 0; n < std::min(pairs.size(), kMaxPairs); ++n) {
    const auto& [count, target, predicted] = pairs[n];
    json["most_confused"].push_back(
        nlohmann::ordered_json{{"class", classNameOf(names, target)},
                               {"predicted", classNameOf(names, predicted)},
                               {"samples", count}});
  }
  json["calibration"]["error"] = calibrationError();
  for (std::size_t b = 0; b < kBins; ++b) {
    const Bin& bin = bins_[b];
    const double samples = std::max(static_cast<double>(bin.samples), 1.0);
    json["calibration"]["bins"].push_back(
        nlohmann::ordered_json{{"from", static_cast<double>(b) / kBins},
                               {"samples", bin.samples},
                               {"confidence", bin.confidence / samples},
                               {"accuracy", static_cast<double>(bin.correct) / samples}});
  }
  return json;
}

}  // namespace cleave
