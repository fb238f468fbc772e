// The data format `csv`: tables of numbers and categories. A sample is one array: the standardised
// numeric columns and the one-hot categorical ones, in the order of the training file.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "client/data/csv_file.h"
#include "client/data/format_keys.h"
#include "client/data/target_column.h"
#include "client/data/unpack.h"
#include "common/core/error.h"
#include "common/core/log.h"
#include "common/core/printable.h"

namespace cleave {
namespace {

using Json = nlohmann::json;

constexpr std::uint32_t kMaxCategories = 4096;  // per column
constexpr std::size_t kMaxFeatures = 1 << 20;

using Cells = std::span<const std::string_view>;

// An input column.
struct FeatureColumn {
  std::string name;
  bool isNumeric = true;
  // Numeric: the value becomes (value - mean) / std.
  double mean = 0, stddev = 1;
  // Categorical: the position of each value, in sorted order.
  std::map<std::string, std::uint32_t, std::less<>> categories;

  std::size_t features() const { return isNumeric ? 1 : categories.size(); }
};

Json toJson(const FeatureColumn& column) {
  if (column.isNumeric) {
    return {{"name", column.name}, {"mean", column.mean}, {"std", column.stddev}};
  }
  Json categories = Json::array();
  for (const auto& [value, position] : column.categories) categories.push_back(value);
  return {{"name", column.name}, {"categories", categories}};
}

FeatureColumn columnOf(const Json& json) {
  FeatureColumn column;
  column.name = json.at("name");
  column.isNumeric = !json.contains("categories");
  if (column.isNumeric) {
    column.mean = json.at("mean");
    column.stddev = json.at("std");
    return column;
  }
  for (const Json& value : json["categories"]) {
    const auto position = static_cast<std::uint32_t>(column.categories.size());
    column.categories.emplace(value.get<std::string>(), position);
  }
  return column;
}

[[noreturn]] void throwNoRows(const std::string& file) {
  throw UsageError("data-empty", file + " has no rows", "give a file with at least one row");
}

// Derives the statistics and categories of the columns from the training set.
class TableLearner {
 public:
  TableLearner(const CsvFile& file, const DataFormatKeys& keys) : file_(file), keys_(keys) {
    const auto isListed = [](const std::vector<std::string>& names, const std::string& name) {
      return std::find(names.begin(), names.end(), name) != names.end();
    };
    for (const std::vector<std::string>* names : {&keys.numericColumns, &keys.categoricalColumns}) {
      for (const std::string& name : *names)
        file.column(name, "correct data.numeric and data.categorical");
    }
    const bool areListed = !keys.numericColumns.empty() || !keys.categoricalColumns.empty();
    for (std::size_t n = 0; n < file.header().size(); ++n) {
      const std::string& name = file.header()[n];
      const bool isCategorical = isListed(keys.categoricalColumns, name);
      const bool isNumeric = isListed(keys.numericColumns, name);
      if (name == keys.labelColumn && (isCategorical || isNumeric)) {
        throw UsageError("config-value",
                         "the target's column '" + name + "' is in " +
                             (isNumeric ? "data.numeric" : "data.categorical") +
                             ", so the model would receive it",
                         "remove it from that list, or correct data.label");
      }
      if (isCategorical && isNumeric) {
        throw UsageError("config-value",
                         "the column '" + name + "' is in data.numeric and in data.categorical",
                         "remove it from one of them");
      }
      const bool isUsed = areListed ? isCategorical || isNumeric : name != keys.labelColumn;
      if (!isUsed) continue;
      Column column;
      column.source = n;
      column.learned.name = name;
      column.learned.isNumeric = !isCategorical;
      column.isGuessed = !areListed;
      columns_.push_back(std::move(column));
    }
    if (columns_.empty()) {
      throw UsageError("no-column", file.path() + " has no column besides the target",
                       "name the columns of the input in data.numeric and data.categorical");
    }
  }

  std::vector<FeatureColumn> learn() {
    bool isEmpty = true;
    file_.forEachRow([&](std::uint64_t line, Cells cells) {
      isEmpty = false;
      for (Column& column : columns_) take(column, cells[column.source], line);
    });
    if (isEmpty) throwNoRows(file_.path());
    std::vector<FeatureColumn> learned;
    std::size_t features = 0;
    for (Column& column : columns_) {
      finish(column);
      features += column.learned.features();
      learned.push_back(std::move(column.learned));
    }
    if (features > kMaxFeatures) {
      throw UsageError("too-many-features",
                       file_.path() + " has " + std::to_string(features) + " features, more than " +
                           std::to_string(kMaxFeatures),
                       "name the columns to use in data.numeric and data.categorical");
    }
    return learned;
  }

 private:
  struct Column {
    std::size_t source = 0;  // position in the file
    FeatureColumn learned;
    bool isGuessed = false;        // numeric until a cell is not a number
    std::uint64_t count = 0;       // of numbers
    double mean = 0, squares = 0;  // statistics of the numbers so far (Welford's method)
    bool hasTooMany = false;       // too many categories
    std::uint64_t texts = 0;       // number of cells that are neither empty nor a number
    std::uint64_t firstText = 0;   // line of the first of them
    std::string text;              // its content
  };

  void take(Column& column, std::string_view cell, std::uint64_t line) {
    if (column.isGuessed || !column.learned.isNumeric) takeCategory(column, cell, line);
    if (!column.isGuessed && !column.learned.isNumeric) return;
    const std::optional<double> number = numberOf(cell);
    if (number) {
      ++column.count;
      const double before = *number - column.mean;
      column.mean += before / static_cast<double>(column.count);
      column.squares += before * (*number - column.mean);
    } else if (!isMissing(cell)) {
      if (!column.isGuessed) throwNotANumber(line, column.learned.name, cell);
      if (column.texts++ == 0) {
        column.firstText = line;
        column.text = cell;
      }
    }
  }

  [[noreturn]] void throwNotANumber(std::uint64_t line, const std::string& name,
                                    std::string_view cell) const {
    throw UsageError("data-damaged",
                     lineOf(file_.path(), line) + ": '" + printable(cell, 60) +
                         "' in the column '" + printable(name, 60) + "' is not a number",
                     "correct the cell, or list the column in data.categorical");
  }

  // A column with only a few texts among its numbers probably has typing errors. As categories, its
  // numbers would be useless.
  void guess(Column& column) const {
    if (!column.isGuessed || column.texts == 0) return;
    if (column.count <= column.texts) {
      column.learned.isNumeric = false;
      return;
    }
    throw UsageError(
        "data-damaged",
        lineOf(file_.path(), column.firstText) + ": '" + printable(column.text, 60) +
            "' in the column '" + printable(column.learned.name, 60) + "' is not a number, but " +
            std::to_string(column.count) + " other cells of the column are numbers",
        "correct the cell, empty it and set data.missing: mean, or name the columns to use in "
        "data.numeric and data.categorical");
  }

  // Guessed columns collect categories too, until they have too many.
  void takeCategory(Column& column, std::string_view cell, std::uint64_t line) const {
    auto& categories = column.learned.categories;
    if (column.hasTooMany || isMissing(cell) || categories.contains(cell)) return;
    if (categories.size() == kMaxCategories) {
      column.hasTooMany = true;
      return;
    }
    checkUtf8(cell, file_.path(), line);
    categories.emplace(cell, 0);
  }

  void finish(Column& column) {
    guess(column);
    FeatureColumn& learned = column.learned;
    if (learned.isNumeric) {
      learned.categories.clear();
      if (column.count == 0) {
        throw UsageError("data-damaged",
                         file_.path() + " has no value in the column '" + learned.name + "'",
                         "remove the column from data.numeric");
      }
      learned.mean = column.mean;
      const double variance = column.squares / static_cast<double>(column.count);
      if (!std::isfinite(column.mean) || !std::isfinite(variance)) {
        throw UsageError("data-damaged",
                         file_.path() + " has numbers in the column '" + learned.name +
                             "' that are too large to be standardised",
                         "remove the column from data.numeric");
      }
      learned.stddev = variance > 0 ? std::sqrt(variance) : 1;
      return;
    }
    if (column.hasTooMany) {
      throw UsageError("too-many-features",
                       "the column '" + printable(learned.name, 60) + "' of " + file_.path() +
                           " has text with more than " + std::to_string(kMaxCategories) +
                           " different values",
                       "name the columns to use in data.numeric and data.categorical");
    }
    std::uint32_t position = 0;
    for (auto& [value, at] : learned.categories) at = position++;
  }

  const CsvFile& file_;
  const DataFormatKeys& keys_;
  std::vector<Column> columns_;
};

class Table final : public Dataset {
 public:
  Table(const DataFormatKeys& keys, DataSplit split)
      : fillsMissing_(keys.missing == "mean"),
        target_(keys.targetType == "number",
                split == DataSplit::train ? Json() : keys.learned.at("target")) {
    const std::vector<std::string> files =
        split == DataSplit::input ? inputFilesOf(keys) : std::vector{fileOf(keys, split)};
    if (split != DataSplit::train) {
      for (const Json& column : keys.learned.at("columns")) columns_.push_back(columnOf(column));
    }
    for (const std::string& path : files) {
      if (!isTablePath(path)) {
        throw UsageError("data-damaged", path + " is not a .csv or .tsv file",
                         "rename the file so that it ends in .csv or .tsv");
      }
      const CsvFile file(path);
      if (split == DataSplit::train) {
        file.column(keys.labelColumn, kLabelHint);
        columns_ = TableLearner(file, keys).learn();
      }
      files_.push_back({path, size()});
      read(file, keys, split != DataSplit::input);
    }
    if (size() == 0) {
      throwNoRows(files.empty() ? "the input" : files.front());
    }
    target_.finish(files.front());
    warnUnknown();
  }

  std::uint32_t size() const override { return static_cast<std::uint32_t>(lines_.size()); }
  int classes() const override { return target_.classes(); }
  std::vector<std::string> classNames() const override { return target_.names(); }
  std::optional<std::int64_t> label(std::uint32_t index) const override {
    return target_.label(index);
  }
  std::vector<SampleArray> arrays() const override {
    return {{"", DType::f32, {static_cast<std::int64_t>(features())}}, target_.array("")};
  }

  Json learned() const override {
    Json columns = Json::array();
    for (const FeatureColumn& column : columns_) columns.push_back(toJson(column));
    return {{"columns", columns}, {"target", target_.learned()}};
  }

  std::string sampleName(std::uint32_t index) const override {
    const auto next = std::upper_bound(
        files_.begin(), files_.end(), index,
        [](std::uint32_t sample, const SourceFile& file) { return sample < file.firstSample; });
    return lineOf(std::prev(next)->path, lines_[index]);
  }

  void write(std::uint32_t index, std::optional<std::uint64_t>, SampleMemory out) const override {
    std::vector<float> sample(features());
    std::size_t feature = 0;
    const float* stored = values_.data() + std::size_t{index} * columns_.size();
    for (const FeatureColumn& column : columns_) {
      const float value = *stored++;
      if (column.isNumeric) {
        sample[feature] = value;
      } else if (value >= 0) {
        sample[feature + static_cast<std::size_t>(value)] = 1;
      }
      feature += column.features();
    }
    std::memcpy(out[0].data(), sample.data(), out[0].size());
    target_.write(index, out[1]);
  }

 private:
  struct SourceFile {
    std::string path;
    std::uint32_t firstSample;
  };
  static constexpr const char* kLabelHint = "set data.label to the column of the target";

  std::size_t features() const {
    std::size_t count = 0;
    for (const FeatureColumn& column : columns_) count += column.features();
    return count;
  }

  void read(const CsvFile& file, const DataFormatKeys& keys, bool hasTarget) {
    const std::size_t target = hasTarget ? file.column(keys.labelColumn, kLabelHint) : 0;
    std::vector<std::size_t> sources;
    for (const FeatureColumn& column : columns_)
      sources.push_back(
          file.column(column.name, "give files with the columns of the training set"));
    file.forEachRow([&](std::uint64_t line, Cells cells) {
      for (std::size_t n = 0; n < sources.size(); ++n)
        values_.push_back(valueOf(columns_[n], cells[sources[n]], file.path(), line));
      if (hasTarget) {
        target_.add(cells[target], file.path(), line);
      } else {
        target_.addUnknown();
      }
      lines_.push_back(static_cast<std::uint32_t>(line));
      if (values_.size() * sizeof(float) > kMaxDataBytes)
        throwDamaged(file.path(), "has more than 2^30 cells", "use fewer columns or rows");
    });
  }

  // The standardised number, or the position of the category; -1 if the category is unknown or
  // missing.
  float valueOf(const FeatureColumn& column, std::string_view cell, const std::string& path,
                std::uint64_t line) {
    if (isMissing(cell)) {
      if (fillsMissing_) return column.isNumeric ? 0 : -1;
      throw UsageError(
          "missing-value",
          lineOf(path, line) + ": the column '" + printable(column.name, 60) + "' has no value",
          "correct the file, or set data.missing: mean");
    }
    if (column.isNumeric) {
      const std::optional<double> number = numberOf(cell);
      if (number) {
        const auto value = static_cast<float>((*number - column.mean) / column.stddev);
        if (std::isfinite(value)) return value;
      }
      throw UsageError("data-damaged",
                       lineOf(path, line) + ": '" + printable(cell, 60) + "' in the column '" +
                           printable(column.name, 60) + "' is not a number",
                       "correct the cell: the column is numeric in the training set");
    }
    const auto found = column.categories.find(cell);
    if (found != column.categories.end()) return static_cast<float>(found->second);
    if (unknown_++ == 0) {
      firstUnknown_ = lineOf(path, line) + " has '" + printable(cell, 60) + "' in the column '" +
                      printable(column.name, 60) + "'";
    }
    return -1;
  }

  void warnUnknown() const {
    if (unknown_ == 0) return;
    processLog()->warn(
        "{} cells have categories that the training set lacks, so all of the column's inputs are 0 "
        "there. The first: {}",
        unknown_, firstUnknown_);
  }

  bool fillsMissing_;
  std::vector<FeatureColumn> columns_;
  TargetColumn target_;
  std::vector<SourceFile> files_;
  std::vector<std::uint32_t> lines_;  // per sample
  std::vector<float> values_;         // [samples, columns]
  std::uint64_t unknown_ = 0;         // cells with categories that the training set lacks
  std::string firstUnknown_;
};

}  // namespace

DataFormatTable makeCsvKeys() {
  using Keys = DataFormatKeys;
  DataFormatTable table;
  addFiles(table);
  addTarget(table);
  const auto list = [&](const std::string& name, std::vector<std::string> Keys::*field,
                        const std::string& meaning) {
    table.add(name, "list of strings", "", "`[]`", meaning, [=](Config& config, Keys& keys) {
      keys.*field = config.texts(name, std::vector<std::string>{});
    });
  };
  list("data.numeric", &Keys::numericColumns,
       "columns of numbers, which are standardised. If neither this nor `data.categorical` is set, "
       "all columns except the target are used; columns with only numbers are numeric");
  list("data.categorical", &Keys::categoricalColumns,
       "columns of categories, encoded one-hot by the values in the training set");
  table.choice(
      "data.missing", {"error", "mean"}, &Keys::missing,
      "empty cells and NaN: `error` refuses them; `mean` replaces a missing number with the "
      "training set's mean, and sets all inputs of a missing category's column to 0");
  return table;
}

std::unique_ptr<Dataset> openCsvSplit(const DataFormatKeys& keys, DataSplit split) {
  return std::make_unique<Table>(keys, split);
}

}  // namespace cleave
