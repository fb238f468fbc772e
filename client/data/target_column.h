// The column of a table that is the target: classes or numbers.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "client/data/dataset.h"

namespace cleave {

// The number in a CSV cell, such as "3" or "-1.5e-3", possibly with blanks around it. Empty if it
// is not a finite number.
std::optional<double> numberOf(std::string_view cell);
// Whether the cell is empty, or one of NaN, NA, N/A, null, None (in any case).
bool isMissing(std::string_view cell);

// The training set determines the class numbers. If all its labels are integers and the smallest is
// 0, the labels are the class numbers. Otherwise the labels become class names: they are sorted (as
// numbers if all are integers, else by their bytes) and numbered from 0.
class TargetColumn {
 public:
  // `learned`: learned() of the training set's column; null if this is the training set's column.
  TargetColumn(bool isNumber, const nlohmann::json& learned);

  // Adds the cell of the next sample. Throws UsageError "bad-label", which begins with FILE:LINE,
  // if the cell is empty, is not a number, or is a class that the training set lacks.
  void add(std::string_view cell, const std::string& path, std::uint64_t line);
  void addUnknown();  // adds a sample without a target; 0 is used
  // Call after the last sample. Throws UsageError "bad-label", or "too-few-classes".
  void finish(const std::string& path);

  SampleArray array(const std::string& name) const;
  int classes() const { return isNumber_ ? 0 : classes_; }
  const std::vector<std::string>& names() const { return names_; }
  nlohmann::json learned() const;
  std::optional<std::int64_t> label(std::uint32_t index) const;  // empty for numbers
  void write(std::uint32_t index, std::span<std::byte> out) const;

 private:
  void numberClasses(const std::string& path);
  std::int64_t knownClass(std::string_view cell, const std::string& path, std::uint64_t line) const;

  bool isNumber_;
  bool isTraining_;
  int classes_ = 0;
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::int64_t> known_;  // the class of each label
  std::vector<std::string> labels_;  // the training set's labels; only until finish()
  std::vector<float> numbers_;
  std::vector<std::int32_t> values_;  // classes; until finish(), positions in labels_
};

}  // namespace cleave
