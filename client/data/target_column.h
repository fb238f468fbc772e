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

// A number as in a CSV cell: "3", "-1.5e-3", with blanks around it. Empty if it is not one, or not
// finite.
std::optional<double> numberOf(std::string_view cell);
// An empty cell, or one of NaN, NA, N/A, null, None (in any case).
bool isMissing(std::string_view cell);

// Classes are numbered by the training set. If all its labels are integers and 0 is the smallest,
// they are kept. Otherwise they are sorted (as numbers if all are integers, else by their bytes)
// and numbered from 0, and have names.
class TargetColumn {
 public:
  // `learned`: what another column's learned() returned; null: this is the training set's.
  TargetColumn(bool isNumber, const nlohmann::json& learned);

  // Adds the cell of the next sample. Throws UsageError "bad-label", which begins with FILE:LINE:
  // the cell is missing, is not a number, or is a class that the training set does not have.
  void add(std::string_view cell, const std::string& path, std::uint64_t line);
  void addUnknown();  // the target is 0
  // After the last sample. Throws UsageError "bad-label".
  void finish(const std::string& path);

  SampleArray array(const std::string& name) const;
  int classes() const { return isNumber_ ? 0 : classes_; }
  const std::vector<std::string>& names() const { return names_; }
  nlohmann::json learned() const;
  void write(std::uint32_t index, std::span<std::byte> out) const;

 private:
  void numberClasses(const std::string& path);
  std::int64_t knownClass(std::string_view cell, const std::string& path, std::uint64_t line) const;

  bool isNumber_;
  bool isTraining_;
  int classes_ = 0;
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::int64_t> known_;  // the class of each label
  std::vector<std::string> labels_;                      // of the training set, until finish()
  std::vector<float> numbers_;
  std::vector<std::int32_t> values_;  // classes; until finish(), positions in labels_
};

}  // namespace cleave
