#include "client/start/data_description.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "client/data/samples/inspect.h"
#include "common/core/printable.h"
#include "common/core/units.h"

namespace cleave {
namespace {

// ": a, b, c, …"
std::string listText(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 6, kMaxBytes = 40;
  std::string text;
  for (std::size_t n = 0; n < std::min(names.size(), kShown); ++n)
    text += (n == 0 ? ": " : ", ") + printable(names[n], kMaxBytes);
  return text + (names.size() > kShown ? ", …" : "");
}

// The power of ten at or below the value, which is positive.
double magnitude(double value) { return std::pow(10, std::floor(std::log10(value))); }

}  // namespace

std::string describeData(const FoundData& found, const Dataset& train, int classes) {
  std::string text = "Data: " + found.explanation + "; " + countText(train.size(), "sample");
  const int count = classes > 0 ? classes : train.classes();
  if (count > 0) text += fmt::format(", {} classes", count) + listText(train.classNames());
  if (!found.unusedTest.empty()) {
    text += fmt::format(
        ". {} is not used; after training: cleave-client eval runs/RUN --set "
        "data.test.{}={}",
        found.unusedTest, found.format == "folder" ? "folder" : "file", found.unusedTest);
  }
  return text + (text.ends_with("…") ? "" : ".");
}

std::string describeColumns(const FoundData& found, const Dataset& train, const std::string& label,
                            bool isNumber) {
  std::vector<std::pair<std::string, std::string>> rows;  // name, use
  const nlohmann::json learned = train.learned();
  if (learned.is_object() && learned.contains("columns")) {
    for (const nlohmann::json& column : learned.at("columns")) {
      std::string use = "input: a number";
      if (column.contains("categories")) {
        const auto names = column.at("categories").get<std::vector<std::string>>();
        use = fmt::format("input: {} categories", names.size()) + listText(names);
      }
      rows.emplace_back(column.at("name"), use);
    }
  } else if (const std::string text = found.value("text"); !text.empty()) {
    rows.emplace_back(text, "input: a text");
  }
  if (rows.empty()) return "";
  rows.emplace_back(label, isNumber ? std::string("target: a number")
                                    : fmt::format("label: {} classes", train.classes()));
  for (const auto& [name, reason] : found.ignored) rows.emplace_back(name, "not used: " + reason);
  constexpr std::size_t kMaxBytes = 40;  // of a name
  std::size_t width = 0;
  for (const auto& [name, use] : rows) width = std::max(width, printable(name, kMaxBytes).size());
  std::string text = "Columns:\n";
  for (const auto& [name, use] : rows)
    text += fmt::format("  {:<{}}  {}\n", printable(name, kMaxBytes), width, use);
  return text;
}

std::string describeTarget(const Dataset& train) {
  constexpr std::uint32_t kSamples = 1000;
  constexpr double kUsual = 10;  // outputs of an untrained model are about 1
  const ValueFigures target = inspectData(train, kSamples).figures.back();
  if (target.values == 0 || target.std == 0) return "";
  const bool isUsual = std::abs(target.mean) <= kUsual && target.std <= kUsual &&
                       std::max(std::abs(target.mean), target.std) >= 1 / kUsual;
  if (isUsual) return "";
  const double digit = magnitude(target.std);
  const auto rounded = [](double value, double unit) { return std::round(value / unit) * unit; };
  return fmt::format(
      "The target has a mean of about {0:.10g} and a std of about {1:.10g}. Targets are not "
      "scaled. "
      "If training is slow, write (value - {0:.10g}) / {1:.10g} into the column, and scale the "
      "predictions back.",
      rounded(target.mean, digit), rounded(target.std, digit / 10));
}

}  // namespace cleave
