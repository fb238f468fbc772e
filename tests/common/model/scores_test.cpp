// Compares losses with their definitions, and metrics with values computed by hand. Also tests
// which targets they refuse.
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <set>

#include "common/core/metric_titles.h"
#include "common/model/scores.h"
#include "tests/support/error_code.h"

namespace cleave::test {
namespace {

at::Tensor floats(const std::vector<double>& values, const std::vector<std::int64_t>& shape) {
  return at::tensor(values, at::kFloat).reshape(shape);
}
at::Tensor integers(const std::vector<std::int64_t>& values) {
  return at::tensor(values, at::kLong);
}

// The loss of a batch that is a single micro-batch.
double lossOf(const LossSpec& spec, const at::Tensor& output, const at::Tensor& target) {
  const LossRow& row = findLoss(spec.name);
  const LossRows rows = row.rows(output, target);
  return row.sum(rows, spec).item<double>() / row.weight(row.rows({}, target), spec);
}

// -log(softmax(x)[c])
double crossEntropy(const std::vector<double>& x, std::size_t c) {
  double sum = 0;
  for (const double each : x) sum += std::exp(each);
  return std::log(sum) - x[c];
}

TEST_CASE("cross entropy is the mean over the targets that count, weighted by class") {
  const std::vector<double> a = {1, 2, 0.5}, b = {0, -1, 3}, c = {2, 2, 2};
  const at::Tensor output = floats({1, 2, 0.5, 0, -1, 3, 2, 2, 2}, {3, 3});
  LossSpec spec;
  const double first = crossEntropy(a, 1), second = crossEntropy(b, 2), third = crossEntropy(c, 0);
  CHECK(lossOf(spec, output, integers({1, 2, 0})) == Approx((first + second + third) / 3));
  CHECK(lossOf(spec, output, integers({1, -100, 0})) == Approx((first + third) / 2));
  spec.ignoreIndex = 2;
  CHECK(lossOf(spec, output, integers({1, 2, 0})) == Approx((first + third) / 2));
  spec = {};
  spec.classWeights = {1, 2, 5};
  CHECK(lossOf(spec, output, integers({1, 2, 0})) == Approx((2 * first + 5 * second + third) / 8));
  spec = {};
  spec.labelSmoothing = 0.3;
  double smooth = 0;
  for (std::size_t k = 0; k < 3; ++k) smooth += crossEntropy(a, k) / 3;
  CHECK(lossOf(spec, output.narrow(0, 0, 1), integers({1})) == Approx(0.7 * first + 0.3 * smooth));
}

TEST_CASE("next_token compares the output of each position with the token after it") {
  // Two samples of three tokens; the vocabulary has two tokens.
  const at::Tensor output = floats({1, 0, 0, 2, 9, 9, 3, 0, 0, 1, 9, 9}, {2, 3, 2});
  const at::Tensor tokens = integers({0, 1, 0, 1, 0, -100}).reshape({2, 3});
  LossSpec spec;
  spec.name = "next_token";
  const double expected =
      crossEntropy({1, 0}, 1) + crossEntropy({0, 2}, 0) + crossEntropy({3, 0}, 0);
  CHECK(lossOf(spec, output, tokens) == Approx(expected / 3));  // one target is ignored
}

TEST_CASE("losses of numeric targets are means over all values") {
  const at::Tensor output = floats({0.5, -2, 1, 3}, {2, 2});
  LossSpec spec;
  spec.name = "mse";
  CHECK(lossOf(spec, output, floats({0, 0, 0, 1}, {2, 2})) == Approx((0.25 + 4 + 1 + 4) / 4));
  spec.name = "bce_with_logits";
  const auto bce = [](double x, double y) {
    const double p = 1 / (1 + std::exp(-x));
    return -(y * std::log(p) + (1 - y) * std::log(1 - p));
  };
  CHECK(lossOf(spec, output, floats({1, 0, 1, 0}, {2, 2})) ==
        Approx((bce(0.5, 1) + bce(-2, 0) + bce(1, 1) + bce(3, 0)) / 4));
  // An output of one value per sample matches a target without dimensions.
  CHECK(lossOf(spec, output.narrow(1, 0, 1), floats({1, 0}, {2})) ==
        Approx((bce(0.5, 1) + bce(1, 0)) / 2));
  spec.name = "output";
  CHECK(lossOf(spec, floats({0.5, 1.5}, {2, 1}), integers({0, 0})) == Approx(1));
}

TEST_CASE("targets that do not fit the loss or the output are refused") {
  const auto code = [](const char* loss, const std::vector<std::int64_t>& output, DType type,
                       const std::vector<std::int64_t>& target,
                       const std::vector<double>& weights = {}) {
    LossSpec spec;
    spec.name = loss;
    spec.classWeights = weights;
    return errorCode([&] { checkLoss(spec, output, type, target); });
  };
  CHECK(code("cross_entropy", {10}, DType::i64, {}).empty());
  CHECK(code("cross_entropy", {10}, DType::f32, {}) == "bad-target");
  CHECK(code("cross_entropy", {10}, DType::i64, {2}) == "bad-target");
  CHECK(code("cross_entropy", {5, 10}, DType::i64, {5}) == "bad-target");
  CHECK(code("cross_entropy", {2}, DType::i64, {}, {1, 2, 3}) == "bad-target");
  CHECK(code("next_token", {5, 10}, DType::i64, {5}).empty());
  CHECK(code("next_token", {5, 10}, DType::i64, {6}) == "bad-target");
  CHECK(code("next_token", {10}, DType::i64, {}) == "bad-target");
  CHECK(code("mse", {1}, DType::f32, {}).empty());
  CHECK(code("mse", {2}, DType::f32, {}) == "bad-target");
  CHECK(code("mse", {1}, DType::i64, {}) == "bad-target");
  CHECK(code("output", {1}, DType::i64, {7}).empty());
  CHECK(code("output", {2}, DType::i64, {7}) == "bad-target");
}

std::optional<double> metric(const std::string& name, const LossRows& rows,
                             TargetKind kind = TargetKind::classes) {
  const BatchMetricRow& row = findBatchMetric(name);
  MetricSums sums;
  const std::int64_t half = rows.target.size(0) / 2, rest = rows.target.size(0) - half;
  // The samples are added in two parts, as two micro-batches.
  const auto add = [&](std::int64_t first, std::int64_t count) {
    const at::Tensor target = rows.target.narrow(0, first, count);
    row.add({{rows.output.narrow(0, first, count), target}, target, kind, {}}, kind, sums);
  };
  add(0, half);
  add(half, rest);
  return row.value(sums);
}

// Returns outputs that predict these classes.
at::Tensor predicting(const std::vector<std::int64_t>& classes, std::int64_t count) {
  at::Tensor output = at::zeros({std::ssize(classes), count});
  for (std::size_t n = 0; n < classes.size(); ++n) {
    output[static_cast<std::int64_t>(n)][classes[n]] = 1;
  }
  return output;
}

TEST_CASE("Matthews correlation and F1 have the values of their definitions") {
  // 4 true positives, 1 false positive, 3 true negatives, 2 false negatives.
  const LossRows two = {predicting({1, 1, 1, 1, 1, 0, 0, 0, 0, 0}, 2),
                        integers({1, 1, 1, 1, 0, 0, 0, 0, 1, 1})};
  CHECK(metric("matthews", two) == Approx((4.0 * 3 - 1.0 * 2) / std::sqrt(5.0 * 6 * 4 * 5)));
  CHECK(metric("f1", two) == Approx(2 * 4.0 / (2 * 4 + 1 + 2)));
  // Three classes. The rows of the confusion matrix are the actual classes: {2, 0, 0}, {1, 1, 0},
  // {0, 1, 2}.
  const LossRows three = {predicting({0, 0, 0, 1, 1, 2, 2}, 3), integers({0, 0, 1, 1, 2, 2, 2})};
  CHECK(metric("matthews", three) ==
        Approx((5.0 * 7 - (3 * 2 + 2 * 2 + 2 * 3)) / std::sqrt((49.0 - 17) * (49.0 - 17))));
  CHECK(metric("f1", three) == Approx((4.0 / 5 + 2.0 / 4 + 4.0 / 5) / 3));
  // Three classes, of which only two occur. F1 is the mean over those two.
  const LossRows some = {predicting({0, 1, 1, 0}, 3), integers({0, 1, 0, 0})};
  CHECK(metric("f1", some) == Approx((4.0 / 5 + 2.0 / 3) / 2));
  // If all predictions are the same class, there is no correlation.
  CHECK(metric("matthews", {predicting({1, 1, 1}, 2), integers({1, 0, 1})}) == 0.0);
  // Each output is a binary prediction with a threshold of 0.
  const LossRows labels = {floats({0.5, -1, 2, -3}, {2, 2}), floats({1, 0, 0, 0}, {2, 2})};
  CHECK(metric("accuracy", labels, TargetKind::labels) == 0.75);
  CHECK(metric("f1", labels, TargetKind::labels) == Approx(2.0 / 3));
}

TEST_CASE("AUROC is the share of pairs in the right order; equal scores count half") {
  const at::Tensor output = floats({0, 0.1, 0, 0.4, 0, 0.35, 0, 0.8, 0, 0.4}, {5, 2});
  // The scores of positives are 0.35, 0.8, 0.4, and of negatives 0.1, 0.4. The positives' pairs
  // count 1 + 0, 1 + 1 and 1 + 0.5.
  CHECK(metric("auroc", {output, integers({0, 0, 1, 1, 1})}) == Approx(4.5 / 6));
  CHECK_FALSE(metric("auroc", {output, integers({1, 1, 1, 1, 1})}));
  const LossRows negative = {floats({-3, -1, -2, -0.0, 0.0}, {5, 1}),
                             floats({0, 1, 0, 1, 0}, {5, 1})};
  CHECK(metric("auroc", negative, TargetKind::labels) == Approx((1 + 1 + 0 + 1 + 1 + 0.5) / 6));
  CHECK(errorCode([&] {
          metric("auroc", {predicting({0, 1, 2}, 3), integers({0, 1, 2})});
        }) == "bad-metric");
}

TEST_CASE("perplexity and RMSE have the values of their definitions") {
  CHECK(findBatchMetric("perplexity").value({{kLossSum, 6}, {kLossWeight, 3}}) ==
        Approx(std::exp(2.0)));
  CHECK_FALSE(findBatchMetric("perplexity").value({}));
  CHECK(metric("rmse", {floats({1, 2, 3}, {3, 1}), floats({1, 0, 7}, {3, 1})},
               TargetKind::numbers) == Approx(std::sqrt(20.0 / 3)));
}

TEST_CASE("targets that do not count are left out of the metrics") {
  LossSpec spec;
  spec.ignoreIndex = 9;
  const at::Tensor target = integers({0, 9, 1});
  const ScoredRows rows({predicting({0, 1, 0}, 2), target}, target, TargetKind::classes, spec);
  CHECK(rows.target().equal(integers({0, 1})));
  CHECK(rows.output().equal(predicting({0, 0}, 2)));
  CHECK(rows.predicted().equal(integers({0, 0})));
  CHECK(rows.ranks() == std::vector<std::int64_t>{0, 1});
}

// The definition: a class ranks above the target's if its output is not smaller, and not equal with
// a higher number.
std::int64_t rankByDefinition(const at::Tensor& outputs, std::int64_t target) {
  const auto value = [&](std::int64_t c) { return outputs[c].item<float>(); };
  std::int64_t rank = 0;
  for (std::int64_t c = 0; c < outputs.size(0); ++c) {
    const bool isBehind = c < target ? value(c) < value(target) : value(c) <= value(target);
    if (c != target && !isBehind) ++rank;
  }
  return rank;
}

TEST_CASE("ranks are those of the definition, with ties, NaN, infinities and bf16") {
  constexpr std::int64_t kRows = 60, kClasses = 37;
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<double> specials = {kNan, kInfinity, -kInfinity, 0.0, -0.0, 1e-40};
  std::vector<double> values;
  std::vector<std::int64_t> targets;
  std::uint32_t state = 1;
  const auto random = [&](std::uint32_t below) {
    state = state * 1664525 + 1013904223;
    return (state >> 8) % below;
  };
  for (std::int64_t n = 0; n < kRows * kClasses; ++n) {
    // Few different values, so that many are equal; every third row has special ones.
    const bool isSpecial = (n / kClasses) % 3 == 0 && random(3) == 0;
    values.push_back(isSpecial ? specials[random(6)] : 0.25 * random(9));
  }
  for (std::int64_t n = 0; n < kRows; ++n) targets.push_back(random(kClasses));
  const at::Tensor target = integers(targets);
  for (const at::Tensor& output :
       {floats(values, {kRows, kClasses}), at::zeros({kRows, kClasses}),
        floats(values, {kRows, kClasses}).mul(1.001).to(at::kBFloat16)}) {
    std::vector<std::int64_t> expected;
    for (std::int64_t n = 0; n < kRows; ++n) {
      expected.push_back(rankByDefinition(output[n], targets[static_cast<std::size_t>(n)]));
    }
    CHECK(ranksOf(output, target).equal(integers(expected)));
    CHECK(ranksByOperators(output, target).equal(integers(expected)));
  }
}

TEST_CASE("every metric has a title, and every title a metric") {
  std::set<std::string> titled;
  for (const MetricTitle& row : metricTitleTable()) titled.insert(row.name);
  std::set<std::string> metrics = {"loss"};
  for (const BatchMetricRow& row : batchMetricTable()) metrics.emplace(row.name);
  CHECK(titled == metrics);
  CHECK(metricTitle("top1").isShare);
  CHECK_FALSE(metricTitle("loss").isBetterIfGreater);
  CHECK(metricTitle("mine").title == "mine");
  ScoreSpec spec;
  spec.metrics = {"top1", "matthews"};
  CHECK(spec.shares() == std::set<std::string>{"top1"});
}

TEST_CASE("a metric must fit the loss, and be listed once") {
  const auto code = [](const char* loss, const std::vector<std::string>& metrics) {
    ScoreSpec spec;
    spec.loss.name = loss;
    spec.metrics = metrics;
    return errorCode([&] { checkScores(spec); });
  };
  for (const LossRow& loss : lossTable()) CHECK(code(std::string(loss.name).c_str(), {}).empty());
  CHECK(code("cross_entropy", {"matthews", "auroc", "top5"}).empty());
  CHECK(code("cross_entropy", {"rmse"}) == "bad-metric");
  CHECK(code("mse", {"top1"}) == "bad-metric");
  CHECK(code("output", {"perplexity"}) == "bad-metric");
  CHECK(code("cross_entropy", {"f1", "top1", "f1"}) == "bad-metric");
  CHECK(code("cross_entropy", {"f2"}) == "unknown-metric");
  CHECK(code("crossentropy", {}) == "unknown-loss");
}

}  // namespace
}  // namespace cleave::test
