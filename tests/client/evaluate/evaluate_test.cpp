// The results of eval and export: scores per class, and weights with adapters merged into them.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>

#include "client/evaluate/class_scores.h"
#include "client/evaluate/merge.h"
#include "tests/support/error_code.h"

namespace cleave::test {
namespace {

// Returns outputs whose softmax is close to the given probabilities.
std::vector<float> logits(const std::vector<double>& probabilities) {
  std::vector<float> outputs;
  for (const double p : probabilities) outputs.push_back(static_cast<float>(std::log(p)));
  return outputs;
}

TEST_CASE("precision, recall and F1 are computed from the confusion matrix") {
  ClassScores scores(3);
  scores.add(logits({0.8, 0.1, 0.1}), 0);
  scores.add(logits({0.7, 0.2, 0.1}), 0);
  scores.add(logits({0.2, 0.7, 0.1}), 0);
  scores.add(logits({0.6, 0.3, 0.1}), 1);
  const auto classes = scores.classes();
  CHECK(scores.samples() == 4);
  CHECK(scores.confused(0, 1) == 1);
  CHECK(scores.confused(1, 0) == 1);
  CHECK(classes[0].samples == 3);
  CHECK(classes[0].predicted == 3);
  CHECK(*classes[0].precision() == Approx(2.0 / 3));
  CHECK(*classes[0].recall() == Approx(2.0 / 3));
  CHECK(*classes[0].f1() == Approx(2.0 / 3));
  CHECK(*classes[1].precision() == 0);
  CHECK(!classes[2].precision());
  CHECK(!classes[2].recall());
  const auto json = scores.toJson({"cat", "dog"});
  CHECK(json.at("classes").at(0).at("name") == "cat");
  CHECK(json.at("classes").at(2).at("name") == "2");
  CHECK(json.at("classes").at(2).at("recall").is_null());
  CHECK(json.at("confusion").at(0) == nlohmann::json({2, 1, 0}));
  CHECK(json.at("most_confused").size() == 2);
}

TEST_CASE("the area under the ROC curve is the share of pairs in the right order") {
  ClassScores scores(2);
  // These are probabilities of class 1. Pairs (positive, negative): 0.4 > 0.1, 0.8 > 0.1, 0.8 > 0.5
  // and 0.8 > 0.4 are in the right order, 0.4 < 0.5 is not, and 0.4 = 0.4 counts as half a pair.
  for (const auto& [p, target] : {std::pair{0.1, 0}, {0.5, 0}, {0.4, 0}, {0.4, 1}, {0.8, 1}}) {
    scores.add(logits({1 - p, p}), target);
  }
  CHECK(*scores.auroc(1) == Approx(4.5 / 6));
  CHECK(*scores.auroc(0) == Approx(4.5 / 6));
  ClassScores one(2);
  one.add(logits({0.5, 0.5}), 0);
  CHECK(!one.auroc(0));
}

TEST_CASE("calibration compares confidence and accuracy") {
  ClassScores scores(2);
  for (int n = 0; n < 10; ++n) scores.add(logits({0.9, 0.1}), n < 6 ? 0 : 1);
  CHECK(scores.calibrationError() == Approx(0.3).epsilon(1e-5));
  CHECK(scores.calibration()[13].samples == 10);
  ClassScores sure(2);
  sure.add(std::vector<float>{1000, 0}, 0);
  CHECK(sure.calibration()[ClassScores::kBins - 1].samples == 1);
  CHECK(sure.calibrationError() == 0);
}

TEST_CASE("outputs that are not finite are refused") {
  ClassScores scores(2);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(errorCode([&] { scores.add(std::vector<float>{nan, 0}, 0); }) == "non-finite");
  CHECK(errorCode([&] { scores.add(std::vector<float>{0, nan}, 0); }) == "non-finite");
}

// ---- Adapters ----

SafetensorsEntry entry(const std::string& name, std::vector<std::int64_t> shape,
                       const std::vector<float>& values) {
  return {name, "F32", std::move(shape), std::as_bytes(std::span(values))};
}

std::vector<float> valuesOf(const SafetensorsEntry& each) {
  std::vector<float> values(each.bytes.size() / sizeof(float));
  std::memcpy(values.data(), each.bytes.data(), each.bytes.size());
  return values;
}

TEST_CASE("merging adds scale * B * A to the weight, in either orientation") {
  const std::vector<float> weight = {1, 2, 3, 4, 5, 6}, a = {1, 10, 100}, b = {1, 2}, bias = {7};
  for (const bool inputsFirst : {false, true}) {
    const std::vector<std::int64_t> shape =
        inputsFirst ? std::vector<std::int64_t>{3, 2} : std::vector<std::int64_t>{2, 3};
    const std::vector<SafetensorsEntry> entries = {
        entry("m.weight", shape, weight), entry("m.bias", {1}, bias),
        entry("m.lora_A.weight", {1, 3}, a), entry("m.lora_B.weight", {2, 1}, b)};
    std::deque<std::vector<float>> memory;
    const auto merged = mergeAdapters(
        entries, 0.5, inputsFirst ? std::vector<std::string>{"m"} : std::vector<std::string>(),
        memory);
    REQUIRE(merged.size() == 2);
    CHECK(merged[1].name == "m.bias");
    const std::vector<float> wanted = inputsFirst ? std::vector<float>{1.5, 3, 8, 14, 55, 106}
                                                  : std::vector<float>{1.5, 7, 53, 5, 15, 106};
    CHECK(valuesOf(merged[0]) == wanted);
  }
}

TEST_CASE("a model without adapters is unchanged, and adapters that do not fit are refused") {
  const std::vector<float> weight = {1, 2, 3, 4, 5, 6}, a = {1, 10, 100}, b = {1, 2};
  std::deque<std::vector<float>> memory;
  const std::vector<SafetensorsEntry> plain = {entry("m.weight", {2, 3}, weight)};
  CHECK(mergeAdapters(plain, 0, {}, memory).size() == 1);
  CHECK(memory.empty());
  const std::vector<SafetensorsEntry> named = {entry("lora_A.weight", {1, 3}, a)};
  CHECK(mergeAdapters(named, 0, {}, memory).size() == 1);
  const auto codeFor = [&](const std::vector<SafetensorsEntry>& entries) {
    return errorCode([&] { mergeAdapters(entries, 1, {}, memory); });
  };
  CHECK(codeFor({plain[0], entry("m.lora_A.weight", {1, 3}, a)}) == "bad-weights");
  CHECK(codeFor({plain[0], entry("m.lora_A.weight", {3, 1}, a),
                 entry("m.lora_B.weight", {2, 1}, b)}) == "bad-weights");
  CHECK(codeFor({entry("m.weight", {3, 2}, weight), entry("m.lora_A.weight", {1, 3}, a),
                 entry("m.lora_B.weight", {2, 1}, b)}) == "bad-weights");
}

}  // namespace
}  // namespace cleave::test
