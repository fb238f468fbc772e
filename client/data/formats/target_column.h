// The column of a table that is the target: classes or numbers.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/data/files/numbers.h"
#include "client/data/samples/dataset.h"
#include "client/data/samples/labels.h"

namespace cleave {

class TargetColumn {
 public:
  struct Options {
    bool isNumber = false;
    std::string name;                         // of the column, for messages
    std::optional<DecimalMark> decimal = {};  // data.decimal
  };
  // `learned`: learned() of the training set's column; null if this is the training set's column.
  TargetColumn(const Options& options, const nlohmann::json& learned);

  // Adds the cell of the next sample. Throws UsageError "bad-label", which begins with FILE:LINE,
  // if the cell is a missing value, is not a number, or is a class that the training set lacks.
  void add(std::string_view cell, const std::string& path, std::uint64_t line);
  void addUnknown();  // adds a sample without a target; 0 is used
  // Call after the last sample. `ofFile`: what the other columns prove about the numbers' form.
  // Throws UsageError: see Labels::finish() and NumberFormLearner::form().
  void finish(const std::string& path, MarkEvidence ofFile = {});

  SampleArray array(const std::string& name) const;
  int classes() const { return options_.isNumber ? 0 : labels_.classes().count; }
  const std::vector<std::string>& names() const { return labels_.classes().names; }
  nlohmann::json learned() const;
  std::optional<std::int64_t> label(std::uint32_t index) const;  // empty for numbers
  void write(std::uint32_t index, std::span<std::byte> out) const;
  void identify(std::uint32_t index, Sha256& digest) const;  // see Dataset::identify()

 private:
  void addNumber(std::string_view cell, const std::string& path, std::uint64_t line);

  Options options_;
  bool isTraining_;
  Labels labels_;
  NumberForm form_;
  NumberFormLearner learner_;     // of the training set
  std::vector<float> numbers_;    // until finish() of a training set: with a decimal point
  std::vector<float> withComma_;  // the same with a decimal comma; only until finish()
};

}  // namespace cleave
