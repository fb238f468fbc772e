// The data format `csv`: tables of numbers and categories. A sample is one array: the standardised
// numeric columns and the one-hot categorical ones, in the order of the training file.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "client/data/files/cells.h"
#include "client/data/files/csv_file.h"
#include "client/data/files/unpack.h"
#include "client/data/formats/format_keys.h"
#include "client/data/formats/table_columns.h"
#include "client/data/formats/target_column.h"
#include "client/data/samples/data_digest.h"
#include "common/core/error.h"
#include "common/core/log.h"
#include "common/core/printable.h"

namespace cleave {
namespace {

using Json = nlohmann::json;

using Cells = std::span<const std::string_view>;

class TableFile final : public Dataset {
 public:
  TableFile(const DataFormatKeys& keys, DataSplit split)
      : fillsMissing_(keys.missing == "mean"),
        target_({keys.targetType == "number", keys.labelColumn, decimalMarkFrom(keys.decimal)},
                split == DataSplit::train ? Json() : keys.learned.at("target")) {
    const std::vector<std::string> files =
        split == DataSplit::input ? inputFilesOf(keys) : std::vector{fileOf(keys, split)};
    if (split != DataSplit::train) {
      for (const Json& column : keys.learned.at("columns")) {
        columns_.push_back(featureColumnFrom(column));
        applyConfigured(columns_.back().form, decimalMarkFrom(keys.decimal));
      }
    }
    MarkEvidence marks;
    for (const std::string& path : files) {
      if (!isTablePath(path)) {
        throw DataError("data-damaged", path + " is not a .csv or .tsv file",
                        split == DataSplit::input
                            ? "give a .csv or .tsv file with the columns of the training set"
                            : "save the table as CSV, with a name that ends in .csv or .tsv");
      }
      const CsvFile file(path, damageOf(keys, split));
      if (split == DataSplit::train) {
        file.column(keys.labelColumn, kLabelHint);
        LearnedColumns learned = learnColumns(file, keys);
        columns_ = std::move(learned.columns);
        marks = learned.marks;
      }
      files_.push_back({path, size()});
      read(file, keys, split != DataSplit::input);
    }
    if (size() == 0) {
      throwNoRows(files.empty() ? "the input" : files.front());
    }
    target_.finish(files.front(), marks);
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

  void identify(std::uint32_t index, Sha256& digest) const override {
    digest.add(std::as_bytes(
        std::span(values_).subspan(std::size_t{index} * columns_.size(), columns_.size())));
    target_.identify(index, digest);
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
    std::vector<float> row(sources.size());
    const auto take = [&](std::uint64_t line, Cells cells) {
      for (std::size_t n = 0; n < sources.size(); ++n)
        row[n] = valueOf(columns_[n], cells[sources[n]], file.path(), line);
      if (hasTarget) {
        target_.add(cells[target], file.path(), line);
      } else {
        target_.addUnknown();
      }
      values_.insert(values_.end(), row.begin(), row.end());
      lines_.push_back(static_cast<std::uint32_t>(line));
      if (values_.size() * sizeof(float) > kMaxDataBytes)
        throwDamaged(file.path(), "has more than 2^30 cells", "use fewer columns or rows");
    };
    // Each row of an input has a prediction.
    file.forEachRow(take, hasTarget ? EmptyEnd::skip : EmptyEnd::keep);
  }

  // The standardised number, or the position of the category; -1 if the category is unknown or
  // missing.
  float valueOf(const FeatureColumn& column, std::string_view cell, const std::string& path,
                std::uint64_t line) {
    if (isMissing(cell)) {
      if (fillsMissing_) return column.isNumeric ? 0 : -1;
      throw DataError(
          "missing-value",
          lineOf(path, line) + ": the column '" + printable(column.name, 60) + "' has no value",
          "correct the file, or set data.missing: mean");
    }
    if (column.isNumeric) {
      const std::optional<double> number = readNumber(cell, column.form);
      if (number) {
        const auto value = static_cast<float>((*number - column.mean) / column.stddev);
        if (std::isfinite(value)) return value;
      }
      const UnreadNumber unread = unreadNumber(cell, column.form);
      throw DataError("data-damaged",
                      lineOf(path, line) + ": '" + printable(cell, 60) + "' in the column '" +
                          printable(column.name, 60) + "' " + unread.fault,
                      unread.hint + ", or empty the cell" +
                          (fillsMissing_ ? "" : " and set data.missing: mean"));
    }
    auto found = column.categories.find(cell);
    if (found == column.categories.end()) found = column.categories.find(trimmed(cell));
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
  DataFormatTable table;
  addFiles(table);
  addTarget(table);
  const auto list = [&](const std::string& name, std::vector<std::string> DataFormatKeys::*field,
                        const std::string& meaning) {
    table.add(name, "list of strings", "", "`[]`", meaning,
              [=](Config& config, DataFormatKeys& keys) {
                keys.*field = config.texts(name, std::vector<std::string>{});
              });
  };
  list("data.numeric", &DataFormatKeys::numericColumns,
       "columns of numbers, which are standardised. If neither this nor `data.categorical` is set, "
       "all columns except the target are used; columns with only numbers are numeric, in any form "
       "that `data.decimal` allows");
  list("data.categorical", &DataFormatKeys::categoricalColumns,
       "columns of categories, encoded one-hot by the values in the training set");
  list("data.ignore", &DataFormatKeys::ignoredColumns,
       "columns that are not used, if neither `data.numeric` nor `data.categorical` is set");
  table.choice(
      "data.missing", {"error", "mean"}, &DataFormatKeys::missing,
      "empty cells and NaN: `error` refuses them; `mean` replaces a missing number with the "
      "training set's mean, and sets all inputs of a missing category's column to 0");
  return table;
}

std::unique_ptr<Dataset> openCsvSplit(const DataFormatKeys& keys, DataSplit split) {
  return std::make_unique<TableFile>(keys, split);
}

}  // namespace cleave
