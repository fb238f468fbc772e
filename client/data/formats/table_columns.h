// The input columns of a table, as the training set determines them. No Torch.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "client/data/files/csv_file.h"
#include "client/data/files/numbers.h"
#include "client/data/formats/formats.h"

namespace cleave {

struct FeatureColumn {
  std::string name;
  bool isNumeric = true;
  // Numeric: the value becomes (value - mean) / std.
  double mean = 0, stddev = 1;
  NumberForm form = {};
  // Categorical: the position of each value, in sorted order.
  std::map<std::string, std::uint32_t, std::less<>> categories = {};

  std::size_t features() const { return isNumeric ? 1 : categories.size(); }
};
nlohmann::json toJson(const FeatureColumn& column);
FeatureColumn featureColumnFrom(const nlohmann::json& json);

struct LearnedColumns {
  std::vector<FeatureColumn> columns;
  MarkEvidence marks;  // what the numeric columns, also the target's, prove about the decimal mark
};
// Derives the columns from the training set. Logs warnings about columns that it leaves out, and
// about text columns whose values hardly repeat. Refuses columns of many texts that begin with a
// digit, unless they are listed. Throws UsageError with the file, line and column.
LearnedColumns learnColumns(const CsvFile& file, const DataFormatKeys& keys);

[[noreturn]] void throwNoRows(const std::string& file);

}  // namespace cleave
