#include "client/data/samples/labels.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>

#include "client/data/files/cells.h"
#include "client/data/files/csv_file.h"
#include "client/data/files/numbers.h"
#include "common/core/error.h"
#include "common/core/names.h"
#include "common/core/printable.h"

namespace cleave {
namespace {

constexpr std::int64_t kMaxClasses = 1 << 20;

// The integer that a label is, in any form except with a unit or thousands.
std::optional<std::int64_t> integerOf(std::string_view text) {
  text = trimmed(text);
  std::int64_t integer = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), integer);
  if (error == std::errc() && end == text.data() + text.size()) return integer;
  const std::optional<NumberCell> number = parseNumber(text);
  if (!number || !number->unit.empty() || number->isSpaced || text.starts_with('('))
    return std::nullopt;
  constexpr double kMax = 1e15;  // a double is exact up to here
  const double value = number->withPoint ? *number->withPoint : *number->withComma;
  const bool hasComma = text.find(',') != std::string_view::npos;
  if ((number->isAmbiguous() && hasComma) || value != std::floor(value) || std::abs(value) > kMax)
    return std::nullopt;
  return static_cast<std::int64_t>(value);
}

std::string placeOf(const std::string& path, std::uint64_t line) {
  return line == 0 ? path : lineOf(path, line);
}

}  // namespace

std::vector<std::string> ClassList::texts() const {
  if (!names.empty()) return names;
  std::vector<std::string> texts;
  for (int c = 0; c < count; ++c) texts.push_back(std::to_string(c));
  return texts;
}

Labels::Labels(std::optional<ClassList> known) : isTraining_(!known) {
  if (isTraining_) return;
  classes_ = std::move(*known);
  const std::vector<std::string> texts = classes_.texts();
  areIntegers_ = std::all_of(texts.begin(), texts.end(),
                             [](const std::string& text) { return integerOf(text).has_value(); });
  for (std::size_t c = 0; c < texts.size(); ++c)
    known_.try_emplace(keyOf(texts[c]), static_cast<std::int32_t>(c));
}

// Labels with equal keys are the same class.
std::string Labels::keyOf(std::string_view text) const {
  if (areIntegers_) {
    if (const auto integer = integerOf(text)) return std::to_string(*integer);
  }
  return std::string(text);
}

void Labels::add(std::string_view text, const std::string& path, std::uint64_t line) {
  text = trimmed(text);
  if (isMissing(text)) {
    const bool isEmpty = text.empty();
    throw DataError("bad-label",
                    placeOf(path, line) + ": " +
                        (isEmpty ? "the label is empty"
                                 : "the label '" + printable(text, 60) + "' is a missing value"),
                    isEmpty ? "give the sample a label, or remove it"
                            : "give the sample a label, or remove it; if " + printable(text, 60) +
                                  " is the name of a class, rename the class, for example to " +
                                  printable(text, 60) + "_class");
  }
  if (!isTraining_) {
    values_.push_back(knownClass(text, path, line));
    return;
  }
  const auto [found, isNew] =
      known_.try_emplace(std::string(text), static_cast<std::int32_t>(labels_.size()));
  if (isNew) {
    if (printable(text) != text) {
      throw DataError("data-damaged",
                      placeOf(path, line) + ": the label '" + printable(text, 60) +
                          "' has characters that cannot be printed",
                      "use printable UTF-8 characters in names of classes");
    }
    if (static_cast<std::int64_t>(labels_.size()) == kMaxClasses) {
      throw DataError("too-many-classes",
                      placeOf(path, line) + ": there are more than 2^20 classes",
                      "use another column as the label");
    }
    labels_.push_back({std::string(text), path, line});
  }
  values_.push_back(found->second);
}

std::int32_t Labels::knownClass(std::string_view text, const std::string& path,
                                std::uint64_t line) const {
  if (const auto found = known_.find(keyOf(text)); found != known_.end()) return found->second;
  const std::string nearest = nearestName(std::string(text), classes_.texts());
  throw DataError(
      "bad-label",
      placeOf(path, line) + ": the training set has no class '" + printable(text, 60) + "'",
      nearest.empty() ? "correct the label, or add samples of this class to the training set"
                      : "correct the label, for example to " + nearest +
                            ", or add samples of this class to the training set");
}

// Throws unless there are two classes or more, and the labels are names or integers.
void Labels::checkLabels(const std::string& path) const {
  const bool isSingle =
      labels_.size() < 2 ||
      (areIntegers_ && std::all_of(labels_.begin(), labels_.end(), [&](const Label& label) {
         return integerOf(label.text) == integerOf(labels_.front().text);
       }));
  if (isSingle) {
    throw DataError("too-few-classes",
                    path + " has a single class" +
                        (labels_.empty() ? "" : ", " + printable(labels_.front().text, 60)) +
                        ", so there is nothing to distinguish",
                    "add samples of at least one other class, or use another column as the label");
  }
  const bool areNumbers = std::all_of(labels_.begin(), labels_.end(), [](const Label& label) {
    const auto number = parseNumber(label.text);
    return integerOf(label.text) || (number && number->unit.empty());
  });
  if (areIntegers_ || !areNumbers) return;
  const auto fraction = std::find_if(labels_.begin(), labels_.end(), [](const Label& label) {
    return !integerOf(label.text).has_value();
  });
  throw DataError("bad-label",
                  placeOf(fraction->path, fraction->line) + ": the label " +
                      printable(fraction->text, 60) + " is a number, but not an integer",
                  "write classes as integers or names; if the target is a value instead of a "
                  "class: data.target_type: number, with train.loss: mse and model.name: graph");
}

void Labels::finish(const std::string& path) {
  if (!isTraining_) return;
  areIntegers_ = std::all_of(labels_.begin(), labels_.end(),
                             [](const Label& label) { return integerOf(label.text).has_value(); });
  checkLabels(path);
  const std::vector<std::int32_t> classOf = areIntegers_ ? numberIntegers(path) : numberNames();
  for (std::int32_t& value : values_) value = classOf[static_cast<std::size_t>(value)];
  labels_.clear();
  known_.clear();
}

// Both return the class of each element of labels_.
std::vector<std::int32_t> Labels::numberNames() {
  std::vector<std::size_t> order(labels_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return labels_[a].text < labels_[b].text; });
  std::vector<std::int32_t> classOf(labels_.size());
  for (const std::size_t n : order) {
    classOf[n] = classes_.count++;
    classes_.names.push_back(labels_[n].text);
  }
  return classOf;
}

std::vector<std::int32_t> Labels::numberIntegers(const std::string& path) {
  std::map<std::int64_t, std::string> names;  // of the first sample with this integer
  for (const Label& label : labels_) names.try_emplace(*integerOf(label.text), label.text);
  const std::int64_t max = names.rbegin()->first;
  if (names.begin()->first == 0) {  // the integers are the class numbers
    if (max >= kMaxClasses) {
      throw DataError("too-many-classes",
                      path + " has the label " + std::to_string(max) +
                          ", but class numbers must be below " + std::to_string(kMaxClasses),
                      "number the classes from 0, or use names as labels");
    }
    const bool arePlain = std::all_of(names.begin(), names.end(), [](const auto& each) {
      return each.second == std::to_string(each.first);
    });
    if (arePlain) {
      classes_.count = static_cast<int>(max + 1);
    } else {
      for (std::int64_t c = 0; c <= max; ++c) names.try_emplace(c, std::to_string(c));
    }
  }
  std::unordered_map<std::int64_t, std::int32_t> numbers;
  const bool hasNames = classes_.count == 0;
  for (const auto& [integer, name] : names) {
    numbers[integer] = hasNames ? classes_.count++ : static_cast<std::int32_t>(integer);
    if (hasNames) classes_.names.push_back(name);
  }
  std::vector<std::int32_t> classOf;
  for (const Label& label : labels_) classOf.push_back(numbers.at(*integerOf(label.text)));
  return classOf;
}

}  // namespace cleave
