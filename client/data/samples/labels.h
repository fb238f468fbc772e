// Reads the class labels of a data set: in tables, in lists and in tar members. No Torch.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace cleave {

// The classes of a training set.
struct ClassList {
  int count = 0;
  std::vector<std::string> names = {};  // by class number; empty: the classes are only numbers

  // The names, or the numbers as text.
  std::vector<std::string> texts() const;
};

// The training set determines the class numbers. If all its labels are integers (also written as
// 1.0, 1,0 or +1) and the smallest is 0, the labels are the class numbers. Otherwise the labels are
// class names: they are sorted (as numbers if all are integers, else by their bytes) and numbered
// from 0. A class has the name that its first sample has in the data.
class Labels {
 public:
  // `known`: the training set's classes. Empty: this is the training set.
  explicit Labels(std::optional<ClassList> known);

  // Adds the label of the next sample, which is in this line of the file; 0: `path` says it all.
  // Throws UsageError "bad-label" if the label is a missing value or a class that the training set
  // lacks, and "data-damaged" if it cannot be printed.
  void add(std::string_view text, const std::string& path, std::uint64_t line);
  void addUnknown() { values_.push_back(0); }  // a sample without a label
  // Call after the last sample. Throws UsageError "bad-label", "too-few-classes",
  // "too-many-classes".
  void finish(const std::string& path);

  const ClassList& classes() const { return classes_; }
  const std::vector<std::int32_t>& values() const { return values_; }  // the class of each sample

 private:
  // A label of the training set.
  struct Label {
    std::string text;
    std::string path;  // of its first sample
    std::uint64_t line;
  };
  std::string keyOf(std::string_view text) const;
  std::int32_t knownClass(std::string_view text, const std::string& path, std::uint64_t line) const;
  void checkLabels(const std::string& path) const;
  std::vector<std::int32_t> numberIntegers(const std::string& path);
  std::vector<std::int32_t> numberNames();

  bool isTraining_;
  bool areIntegers_ = false;  // whether the labels are compared as integers
  ClassList classes_;
  std::unordered_map<std::string, std::int32_t> known_;  // the class, or position, of each key
  std::vector<Label> labels_;                            // only until finish()
  std::vector<std::int32_t> values_;  // until finish() of a training set: positions in labels_
};

}  // namespace cleave
