#include "client/data/target_column.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <numeric>

#include "client/data/csv_file.h"
#include "common/core/error.h"
#include "common/core/printable.h"

namespace cleave {
namespace {

constexpr std::int64_t kMaxClasses = 1 << 20;

std::string_view trimmed(std::string_view text) {
  const auto isBlank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && isBlank(text.front())) text.remove_prefix(1);
  while (!text.empty() && isBlank(text.back())) text.remove_suffix(1);
  return text;
}

template <typename Number>
std::optional<Number> parsed(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<std::int64_t> integerOf(std::string_view text) { return parsed<std::int64_t>(text); }

[[noreturn]] void badLabel(const std::string& where, const std::string& fault,
                           const std::string& hint) {
  throw UsageError("bad-label", where + ": " + fault, hint);
}

}  // namespace

std::optional<double> numberOf(std::string_view cell) {
  const std::optional<double> number = parsed<double>(cell);
  return number && std::isfinite(*number) ? number : std::nullopt;
}

bool isMissing(std::string_view cell) {
  cell = trimmed(cell);
  constexpr std::size_t kLongest = 4;
  if (cell.empty()) return true;
  if (cell.size() > kLongest) return false;
  std::string lower(cell);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  constexpr std::array<std::string_view, 6> kMissing = {"nan", "-nan", "na", "n/a", "null", "none"};
  return std::find(kMissing.begin(), kMissing.end(), lower) != kMissing.end();
}

TargetColumn::TargetColumn(bool isNumber, const nlohmann::json& learned)
    : isNumber_(isNumber), isTraining_(learned.is_null()) {
  if (isTraining_ || isNumber) return;
  classes_ = learned.at("classes");
  names_ = learned.at("names").get<std::vector<std::string>>();
  for (std::size_t n = 0; n < names_.size(); ++n) known_[names_[n]] = static_cast<std::int64_t>(n);
}

void TargetColumn::add(std::string_view cell, const std::string& path, std::uint64_t line) {
  if (isNumber_) {
    const std::optional<double> number = numberOf(cell);
    if (!number || !std::isfinite(static_cast<float>(*number))) {
      badLabel(lineOf(path, line), "the target '" + printable(cell, 60) + "' is not a number",
               "correct the file, or set data.target_type: class");
    }
    numbers_.push_back(static_cast<float>(*number));
    return;
  }
  if (trimmed(cell).empty())
    badLabel(lineOf(path, line), "the label is empty", "remove the row, or set data.label");
  if (!isTraining_) {
    values_.push_back(static_cast<std::int32_t>(knownClass(cell, path, line)));
    return;
  }
  const auto [found, isNew] =
      known_.try_emplace(std::string(trimmed(cell)), static_cast<std::int64_t>(labels_.size()));
  if (isNew) {
    checkUtf8(found->first, path, line);
    labels_.push_back(found->first);
  }
  if (static_cast<std::int64_t>(labels_.size()) > kMaxClasses) {
    badLabel(lineOf(path, line), "there are more than 2^20 classes",
             "set data.target_type: number, or data.label to another column");
  }
  values_.push_back(static_cast<std::int32_t>(found->second));
}

void TargetColumn::addUnknown() {
  if (isNumber_) {
    numbers_.push_back(0);
  } else {
    values_.push_back(0);
  }
}

std::int64_t TargetColumn::knownClass(std::string_view cell, const std::string& path,
                                      std::uint64_t line) const {
  if (names_.empty()) {
    const std::optional<std::int64_t> label = integerOf(cell);
    if (label && *label >= 0 && *label < classes_) return *label;
  } else if (const auto found = known_.find(std::string(trimmed(cell))); found != known_.end()) {
    return found->second;
  }
  badLabel(lineOf(path, line), "the training set has no class '" + printable(cell, 60) + "'",
           "correct the label, or add samples of this class to the training set");
}

void TargetColumn::finish(const std::string& path) {
  if (isTraining_ && !isNumber_) numberClasses(path);
}

void TargetColumn::numberClasses(const std::string& path) {
  if (labels_.size() < 2) {
    throw UsageError(
        "too-few-classes",
        path + " has a single class" +
            (labels_.empty() ? "" : ", " + printable(labels_.front(), 60)) +
            ", so there is nothing to distinguish",
        "add samples of at least one other class, or set data.label to another column");
  }
  std::vector<std::size_t> order(labels_.size());  // positions in labels_, sorted by label
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto all = [&](auto isOne) { return std::all_of(labels_.begin(), labels_.end(), isOne); };
  const bool areIntegers =
      all([](const std::string& label) { return integerOf(label).has_value(); });
  if (!areIntegers && all([](const std::string& label) { return numberOf(label).has_value(); })) {
    badLabel(path, "the labels are numbers such as " + printable(labels_.front(), 60),
             "set data.target_type: number");
  }
  if (areIntegers) {
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return *integerOf(labels_[a]) < *integerOf(labels_[b]);
    });
  } else {
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return labels_[a] < labels_[b]; });
  }
  std::vector<std::int32_t> classOf(labels_.size());
  if (areIntegers && !order.empty() && integerOf(labels_[order.front()]) == 0) {
    const std::int64_t max = *integerOf(labels_[order.back()]);
    if (max >= kMaxClasses) {
      badLabel(path, "the label " + std::to_string(max) + " is too large for a class",
               "set data.target_type: number");
    }
    classes_ = static_cast<int>(max + 1);
    for (std::size_t n = 0; n < labels_.size(); ++n)
      classOf[n] = static_cast<std::int32_t>(*integerOf(labels_[n]));
  } else {
    classes_ = static_cast<int>(labels_.size());
    for (std::size_t n = 0; n < order.size(); ++n) {
      classOf[order[n]] = static_cast<std::int32_t>(n);
      names_.push_back(labels_[order[n]]);
    }
  }
  for (std::int32_t& value : values_) value = classOf[static_cast<std::size_t>(value)];
  labels_.clear();
  known_.clear();
}

SampleArray TargetColumn::array(const std::string& name) const {
  return {name, isNumber_ ? DType::f32 : DType::i64, {}};
}

nlohmann::json TargetColumn::learned() const {
  if (isNumber_) return nlohmann::json::object();
  return {{"classes", classes_}, {"names", names_}};
}

std::optional<std::int64_t> TargetColumn::label(std::uint32_t index) const {
  if (isNumber_) return std::nullopt;
  return values_[index];
}

void TargetColumn::write(std::uint32_t index, std::span<std::byte> out) const {
  if (isNumber_) {
    std::memcpy(out.data(), &numbers_[index], sizeof numbers_[index]);
  } else {
    const std::int64_t value = values_[index];
    std::memcpy(out.data(), &value, sizeof value);
  }
}

}  // namespace cleave
