#include "common/model/scores.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <utility>

#include "common/core/error.h"
#include "common/core/metric_titles.h"
#include "common/core/names.h"

namespace cleave {
namespace {

bool isClasses(TargetKind kind) { return kind == TargetKind::classes; }
bool isLabels(TargetKind kind) { return kind == TargetKind::labels; }
bool isDecision(TargetKind kind) { return isClasses(kind) || isLabels(kind); }
bool isNumbers(TargetKind kind) { return kind == TargetKind::numbers; }

double sumOf(const MetricSums& sums, const std::string& name) {
  const auto found = sums.find(name);
  return found == sums.end() ? 0 : found->second;
}

// sums[part] / sums[whole]
std::optional<double> share(const MetricSums& sums, const char* part, const char* whole) {
  const double all = sumOf(sums, whole);
  return all > 0 ? std::optional(sumOf(sums, part) / all) : std::nullopt;
}

std::span<const float> floatsOf(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

// ---- Top-k ----

void countTop(const ScoredRows& rows, std::int64_t k, const char* name, MetricSums& sums) {
  const std::vector<std::int64_t>& ranks = rows.ranks();
  sums[name] += static_cast<double>(
      std::count_if(ranks.begin(), ranks.end(), [&](std::int64_t rank) { return rank < k; }));
  sums[std::string(name) + "_of"] += static_cast<double>(ranks.size());
}

// ---- Decisions: Matthews, F1, accuracy ----

struct Decision {
  std::int64_t predicted, actual;
};

// Returns one decision per row (classes), or one per output (labels).
std::vector<Decision> decisionsOf(const ScoredRows& rows, TargetKind kind) {
  std::vector<Decision> decisions;
  if (isLabels(kind)) {
    const at::Tensor output = rows.output();
    const auto outputs = floatsOf(output), targets = floatsOf(rows.target());
    for (std::size_t n = 0; n < outputs.size(); ++n) {
      decisions.push_back({outputs[n] > 0 ? 1 : 0, targets[n] > 0.5F ? 1 : 0});
    }
    return decisions;
  }
  const at::Tensor predicted = rows.predicted();
  for (std::int64_t n = 0; n < rows.target().numel(); ++n) {
    decisions.push_back({predicted.const_data_ptr<std::int64_t>()[n],
                         rows.target().const_data_ptr<std::int64_t>()[n]});
  }
  return decisions;
}

// Counts for each class: correct predictions, all predictions, and targets.
void countDecisions(const ScoredRows& rows, TargetKind kind, const std::string& metric,
                    MetricSums& sums) {
  const std::int64_t classes = isLabels(kind) ? 2 : rows.width();
  ++sums[metric + "_classes/" + std::to_string(classes)];
  for (const auto [predicted, actual] : decisionsOf(rows, kind)) {
    if (predicted == actual) ++sums[metric + "_right/" + std::to_string(actual)];
    ++sums[metric + "_predicted/" + std::to_string(predicted)];
    ++sums[metric + "_actual/" + std::to_string(actual)];
  }
}

struct ClassCounts {
  double right = 0, predicted = 0, actual = 0;
};

std::map<std::int64_t, ClassCounts> classCounts(const MetricSums& sums, const std::string& metric) {
  std::map<std::int64_t, ClassCounts> counts;
  const std::pair<std::string, double ClassCounts::*> fields[] = {
      {metric + "_right/", &ClassCounts::right},
      {metric + "_predicted/", &ClassCounts::predicted},
      {metric + "_actual/", &ClassCounts::actual}};
  for (const auto& [prefix, field] : fields) {
    for (auto each = sums.lower_bound(prefix);
         each != sums.end() && each->first.starts_with(prefix); ++each) {
      const std::int64_t number = std::strtoll(each->first.c_str() + prefix.size(), nullptr, 10);
      counts[number].*field = each->second;
    }
  }
  return counts;
}

// The Matthews correlation coefficient for any number of classes: Gorodkin, "Comparing two
// K-category assignments by a K-category correlation coefficient", 2004. 0 if all samples have the
// same class or the same prediction, as in scikit-learn.
std::optional<double> matthews(const MetricSums& sums) {
  double right = 0, samples = 0, products = 0, predictedSquares = 0, actualSquares = 0;
  for (const auto& [number, count] : classCounts(sums, "matthews")) {
    right += count.right;
    samples += count.actual;
    products += count.predicted * count.actual;
    predictedSquares += count.predicted * count.predicted;
    actualSquares += count.actual * count.actual;
  }
  if (samples == 0) return std::nullopt;
  const double all = samples * samples;
  const double scale = std::sqrt(all - predictedSquares) * std::sqrt(all - actualSquares);
  return scale > 0 ? (right * samples - products) / scale : 0;
}

// For two classes, the F1 of class 1. For more, the mean over all classes that occur.
std::optional<double> f1(const MetricSums& sums) {
  const auto counts = classCounts(sums, "f1");
  if (counts.empty()) return std::nullopt;
  const auto ofClass = [](const ClassCounts& count) {
    return 2 * count.right / (count.predicted + count.actual);
  };
  if (sums.contains("f1_classes/2")) {
    const auto positive = counts.find(1);
    return positive == counts.end() ? 0 : ofClass(positive->second);
  }
  double sum = 0;
  for (const auto& [number, count] : counts) sum += ofClass(count);
  return sum / static_cast<double>(counts.size());
}

void countRight(const ScoredRows& rows, TargetKind kind, MetricSums& sums) {
  const std::vector<Decision> decisions = decisionsOf(rows, kind);
  sums["accuracy"] += static_cast<double>(
      std::count_if(decisions.begin(), decisions.end(),
                    [](const Decision& each) { return each.predicted == each.actual; }));
  sums["accuracy_of"] += static_cast<double>(decisions.size());
}

// ---- AUROC ----

// Returns a key that sorts like the float.
std::string keyOf(float score) {
  constexpr std::uint32_t kSign = 0x8000'0000;
  const auto bits = std::bit_cast<std::uint32_t>(score == 0 ? 0.0F : score);
  const std::uint32_t ordered = (bits & kSign) != 0 ? ~bits : bits | kSign;
  std::string key = std::to_string(ordered);
  constexpr std::size_t kDigits = 10;
  return std::string(kDigits - key.size(), '0') + key;
}

// Counts how often each score occurred in each class. The result is exact, and independent of the
// order.
void countScores(const ScoredRows& rows, TargetKind kind, MetricSums& sums) {
  const auto count = [&](float score, bool isPositive) {
    if (std::isnan(score)) return;
    ++sums[(isPositive ? "auroc+/" : "auroc-/") + keyOf(score)];
  };
  if (isLabels(kind)) {
    const at::Tensor output = rows.output();
    const auto outputs = floatsOf(output), targets = floatsOf(rows.target());
    for (std::size_t n = 0; n < outputs.size(); ++n) count(outputs[n], targets[n] > 0.5F);
    return;
  }
  if (rows.width() != 2) {
    throw UsageError(
        "bad-metric",
        "the metric auroc is for two classes, but the model has " + std::to_string(rows.width()),
        "remove auroc from train.metrics")
        .about("train.metrics");
  }
  const at::Tensor output = rows.output();
  const auto outputs = floatsOf(output);
  for (std::int64_t n = 0; n < rows.target().numel(); ++n) {
    const auto row = static_cast<std::size_t>(2 * n);
    count(outputs[row + 1] - outputs[row], rows.target().const_data_ptr<std::int64_t>()[n] == 1);
  }
}

// The probability that a positive sample has a higher score than a negative one; equal scores count
// half.
std::optional<double> auroc(const MetricSums& sums) {
  std::map<std::string, std::pair<double, double>> scores;  // positives, negatives
  double positives = 0, negatives = 0;
  for (auto each = sums.lower_bound("auroc+/"); each != sums.end(); ++each) {
    if (!each->first.starts_with("auroc+/")) break;
    scores[each->first.substr(7)].first = each->second;
    positives += each->second;
  }
  for (auto each = sums.lower_bound("auroc-/"); each != sums.end(); ++each) {
    if (!each->first.starts_with("auroc-/")) break;
    scores[each->first.substr(7)].second = each->second;
    negatives += each->second;
  }
  if (positives == 0 || negatives == 0) return std::nullopt;
  double pairs = 0, lower = 0;
  for (const auto& [key, count] : scores) {
    pairs += count.first * (lower + count.second / 2);
    lower += count.second;
  }
  return pairs / positives / negatives;
}

// ---- Numbers, language models ----

void addSquares(const ScoredRows& rows, TargetKind, MetricSums& sums) {
  const at::Tensor output = rows.output();
  const auto outputs = floatsOf(output), targets = floatsOf(rows.target());
  for (std::size_t n = 0; n < outputs.size(); ++n) {
    const double error = double{outputs[n]} - double{targets[n]};
    sums["rmse"] += error * error;
  }
  sums["rmse_of"] += static_cast<double>(outputs.size());
}

constexpr BatchMetricRow kMetrics[] = {
    {"top1", "share of targets whose class had the highest output", isClasses, false,
     [](const ScoredRows& rows, TargetKind, MetricSums& sums) { countTop(rows, 1, "top1", sums); },
     [](const MetricSums& sums) { return share(sums, "top1", "top1_of"); }},
    {"top5", "share of targets whose class was among the five highest outputs", isClasses, false,
     [](const ScoredRows& rows, TargetKind, MetricSums& sums) { countTop(rows, 5, "top5", sums); },
     [](const MetricSums& sums) { return share(sums, "top5", "top5_of"); }},
    {"accuracy", "share of outputs on the right side of 0", isLabels, false, countRight,
     [](const MetricSums& sums) { return share(sums, "accuracy", "accuracy_of"); }},
    {"matthews", "Matthews correlation coefficient, -1 to 1", isDecision, false,
     [](const ScoredRows& rows, TargetKind kind, MetricSums& sums) {
       countDecisions(rows, kind, "matthews", sums);
     },
     matthews},
    {"f1", "F1 of class 1 if there are two classes, else the mean over the classes", isDecision,
     false,
     [](const ScoredRows& rows, TargetKind kind, MetricSums& sums) {
       countDecisions(rows, kind, "f1", sums);
     },
     f1},
    {"auroc", "area under the ROC curve, for two classes; evaluation only", isDecision, true,
     countScores, auroc},
    {"perplexity", "exponential of the mean loss", isClasses, false, nullptr,
     [](const MetricSums& sums) -> std::optional<double> {
       const auto loss = share(sums, kLossSum, kLossWeight);
       return loss ? std::optional(std::exp(*loss)) : std::nullopt;
     }},
    {"rmse", "root of the mean squared error", isNumbers, false, addSquares,
     [](const MetricSums& sums) -> std::optional<double> {
       const auto mean = share(sums, "rmse", "rmse_of");
       return mean ? std::optional(std::sqrt(*mean)) : std::nullopt;
     }},
};

std::int64_t rankOf(std::span<const float> outputs, std::int64_t target) {
  const auto right = static_cast<std::size_t>(target);
  const float value = outputs[right];
  std::uint32_t behind = 0;
  for (std::size_t c = 0; c < right; ++c) behind += outputs[c] < value ? 1 : 0;
  for (std::size_t c = right + 1; c < outputs.size(); ++c) behind += outputs[c] <= value ? 1 : 0;
  return std::ssize(outputs) - 1 - behind;
}

}  // namespace

std::span<const BatchMetricRow> batchMetricTable() { return kMetrics; }

const BatchMetricRow& findBatchMetric(std::string_view name) {
  return findByName(batchMetricTable(), name, "unknown-metric", "a metric");
}

bool isTrivial(std::string_view metric, std::int64_t classes) {
  return metric == "top5" && classes <= 5;
}

std::vector<std::string> ScoreSpec::names() const {
  std::vector<std::string> names = {"loss"};
  names.insert(names.end(), metrics.begin(), metrics.end());
  return names;
}

std::set<std::string> ScoreSpec::shares() const {
  std::set<std::string> shares;
  for (const std::string& name : metrics) {
    if (metricTitle(name).isShare) shares.insert(name);
  }
  return shares;
}

void checkScores(const ScoreSpec& spec) {
  const LossRow& loss = findLoss(spec.loss.name);
  for (auto name = spec.metrics.begin(); name != spec.metrics.end(); ++name) {
    if (!findBatchMetric(*name).fits(loss.target)) {
      std::string fitting;
      for (const BatchMetricRow& row : batchMetricTable()) {
        if (row.fits(loss.target)) fitting += (fitting.empty() ? "" : ", ") + std::string(row.name);
      }
      throw UsageError(
          "bad-metric", "the metric " + *name + " does not fit the loss " + spec.loss.name,
          fitting.empty() ? "remove it: this loss has no metrics" : "choose from " + fitting)
          .about("train.metrics");
    }
    if (std::find(spec.metrics.begin(), name, *name) != name) {
      throw UsageError("bad-metric", "the metric " + *name + " is listed twice",
                       "list each metric once")
          .about("train.metrics");
    }
  }
}

ScoredRows::ScoredRows(const LossRows& rows, const at::Tensor& target, TargetKind kind,
                       const LossSpec& spec)
    : output_(rows.output.detach()), deviceTarget_(rows.target), target_(target.contiguous()) {
  if (!isClasses(kind)) return;
  const at::Tensor kept = target_.ne(spec.ignoreIndex);
  if (kept.all().item<bool>()) return;
  positions_ = kept.nonzero().flatten();
  target_ = target_.index_select(0, positions_);
}

at::Tensor ScoredRows::counted(const at::Tensor& perRow) const {
  const at::Tensor here = perRow.cpu();
  return positions_.defined() ? here.index_select(0, positions_) : here.contiguous();
}

const std::vector<std::int64_t>& ScoredRows::ranks() const {
  if (!ranks_) {
    const at::Tensor ranks = counted(ranksOf(output_, deviceTarget_));
    const auto* const values = ranks.const_data_ptr<std::int64_t>();
    ranks_.emplace(values, values + ranks.numel());
  }
  return *ranks_;
}

at::Tensor ScoredRows::predicted() const { return counted(output_.argmax(1)); }
at::Tensor ScoredRows::output() const { return counted(output_.to(at::kFloat)); }

at::Tensor ranksOf(const at::Tensor& output, const at::Tensor& target) {
  if (!output.is_cpu()) return ranksByOperators(output, target);
  const at::Tensor rows = output.to(at::kFloat).contiguous(), targets = target.contiguous();
  const auto classes = static_cast<std::size_t>(rows.size(1));
  at::Tensor ranks = at::zeros({rows.size(0)}, at::kLong);
  for (std::int64_t n = 0; n < rows.size(0); ++n) {
    const std::int64_t right = targets.const_data_ptr<std::int64_t>()[n];
    if (right < 0 || right >= rows.size(1)) continue;  // an ignored target
    ranks.mutable_data_ptr<std::int64_t>()[n] = rankOf(
        {rows.const_data_ptr<float>() + static_cast<std::size_t>(n) * classes, classes}, right);
  }
  return ranks;
}

at::Tensor ranksByOperators(const at::Tensor& output, const at::Tensor& target) {
  constexpr std::int64_t kValuesAtOnce = std::int64_t{1} << 26;  // bounds the memory of masks
  const std::int64_t classes = output.size(1);
  const at::Tensor numbers = at::arange(classes, target.options());
  std::vector<at::Tensor> ranks;
  const auto targets = target.clamp(0, classes - 1)
                           .unsqueeze(1)
                           .split(std::max<std::int64_t>(1, kValuesAtOnce / classes));
  std::int64_t first = 0;
  for (const at::Tensor& right : targets) {
    const at::Tensor rows = output.narrow(0, first, right.size(0));
    first += right.size(0);
    const at::Tensor value = rows.gather(1, right);
    // The equal outputs of higher classes rank behind the target too.
    at::Tensor behind = rows.eq(value).logical_and_(numbers.gt(right));
    behind.logical_or_(rows.lt(value));
    ranks.push_back(behind.sum(1).neg_().add_(classes - 1));
  }
  return at::cat(ranks);
}

}  // namespace cleave
