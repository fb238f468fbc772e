#include "client/data/formats/table_columns.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "client/data/files/cells.h"
#include "client/data/files/id_scan.h"
#include "common/core/error.h"
#include "common/core/log.h"
#include "common/core/printable.h"

namespace cleave {
namespace {

using Json = nlohmann::json;
using Cells = std::span<const std::string_view>;

constexpr std::uint32_t kMaxCategories = 4096;  // per column
constexpr std::size_t kManyCategories = 20;
constexpr std::size_t kMaxFeatures = 1 << 20;
constexpr const char* kListHint = "name the columns to use in data.numeric and data.categorical";
constexpr const char* kIgnoreHint = "list it in data.ignore";

// Mean and variance in one pass (Welford).
struct Moments {
  std::uint64_t count = 0;
  double mean = 0, squares = 0;

  void add(double value) {
    ++count;
    const double before = value - mean;
    mean += before / static_cast<double>(count);
    squares += before * (value - mean);
  }
};

class TableLearner {
 public:
  TableLearner(const CsvFile& file, const DataFormatKeys& keys) : file_(file), keys_(keys) {
    for (const std::vector<std::string>* names :
         {&keys.numericColumns, &keys.categoricalColumns, &keys.ignoredColumns}) {
      for (const std::string& name : *names)
        file.column(name, "correct data.numeric, data.categorical and data.ignore");
    }
    const bool areListed = !keys.numericColumns.empty() || !keys.categoricalColumns.empty();
    if (areListed && !keys.ignoredColumns.empty()) {
      throw UsageError("config-value",
                       "data.ignore has no effect, because data.numeric or data.categorical lists "
                       "the columns to use",
                       "remove data.ignore")
          .about("data.ignore");
    }
    for (std::size_t n = 0; n < file.header().size(); ++n) {
      const std::string& name = file.header()[n];
      const bool isCategorical = isListed(keys.categoricalColumns, name);
      const bool isNumeric = isListed(keys.numericColumns, name);
      const bool isTarget = name == trimmed(keys.labelColumn);
      checkLists(name, isTarget, isNumeric, isCategorical);
      const bool isIgnored = isListed(keys.ignoredColumns, name);
      if (isTarget && isIgnored) {
        throw UsageError("config-value", "the target's column '" + name + "' is in data.ignore",
                         "remove it from data.ignore, or correct data.label");
      }
      const bool isUsed = areListed ? isCategorical || isNumeric : !isTarget && !isIgnored;
      if (isTarget && keys.targetType == "number") target_ = n;
      if (!isUsed) {
        if (!isTarget) unused_.addColumn(n);
        continue;
      }
      Column column;
      column.source = n;
      column.learned.name = name;
      column.learned.isNumeric = !isCategorical;
      column.isGuessed = !areListed;
      column.mayBeIndex = column.isGuessed && mayBeIndex(name);
      columns_.push_back(std::move(column));
    }
    if (columns_.empty()) throwNoColumns();
  }

  LearnedColumns learn() {
    file_.forEachRow([&](std::uint64_t line, Cells cells) {
      ++rows_;
      for (Column& column : columns_) take(column, cells[column.source], line);
      unused_.add(cells, line);
      if (!target_) return;
      if (const auto number = parseNumber(cells[*target_]))
        targetForm_.add(*number, cells[*target_], line);
    });
    if (rows_ == 0) throwNoRows(file_.path());
    std::erase_if(columns_, [&](Column& column) { return isLeftOut(column); });
    if (columns_.empty()) throwNoColumns();
    std::erase_if(columns_, [&](Column& column) {
      return !orReport(file_.report(), file_.path(), [&] { guess(column); });
    });
    LearnedColumns learned;
    learned.marks = marks();
    std::size_t features = 0;
    for (Column& column : columns_) {
      const bool isGood =
          orReport(file_.report(), file_.path(), [&] { finish(column, learned.marks); });
      if (!isGood) continue;
      features += column.learned.features();
      learned.columns.push_back(std::move(column.learned));
    }
    if (learned.columns.empty())
      throw DataError("data-damaged", file_.path() + " has no readable column", kListHint);
    if (features > kMaxFeatures) {
      throw DataError("too-many-features",
                      file_.path() + " has " + std::to_string(features) + " features, more than " +
                          std::to_string(kMaxFeatures),
                      kListHint);
    }
    return learned;
  }

 private:
  struct Column {
    std::size_t source = 0;  // position in the file
    FeatureColumn learned;
    bool isGuessed = false;   // numeric until a cell is not a number
    bool mayBeIndex = false;  // it has no name
    bool isEmpty = true;
    IdScan ids;
    NumberFormLearner form;
    Moments withPoint, withComma;  // of the numbers, by decimal mark
    std::uint64_t count = 0;       // of numbers
    bool hasTooMany = false;       // too many categories
    std::uint64_t texts = 0;       // number of cells that are neither empty nor a number
    std::uint64_t firstText = 0;   // line of the first of them
    std::string text;              // its content
    bool areDigits = true;         // whether all numbers are written with digits only
    std::string code;              // the first number with a leading zero, such as 01234
  };

  static bool isListed(const std::vector<std::string>& names, const std::string& name) {
    return std::any_of(names.begin(), names.end(), [&](const std::string& each) {
      return trimmed(each) == std::string_view(name);
    });
  }

  // pandas writes its row numbers without a name, and reads them back as "Unnamed: 0".
  static bool mayBeIndex(const std::string& name) {
    return name.empty() || name.starts_with("Unnamed: ");
  }

  [[noreturn]] void throwNoColumns() const {
    throw UsageError("no-column", file_.path() + " has no column besides the target",
                     "name the columns of the input in data.numeric and data.categorical; if the "
                     "columns are not separated by commas, tabs, semicolons or |, change the file");
  }

  static void checkLists(const std::string& name, bool isTarget, bool isNumeric,
                         bool isCategorical) {
    if (isTarget && (isCategorical || isNumeric)) {
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
  }

  void take(Column& column, std::string_view cell, std::uint64_t line) {
    column.isEmpty &= isMissing(cell);
    if (column.isGuessed || !column.learned.isNumeric) takeCategory(column, cell);
    if (!column.isGuessed && !column.learned.isNumeric) return;
    const std::optional<NumberCell> number = parseNumber(cell);
    if (column.isGuessed) column.ids.add(number);
    if (number) {
      ++column.count;
      column.form.add(*number, cell, line);
      if (column.isGuessed && column.areDigits) takeDigits(column, trimmed(cell));
      if (number->withPoint) column.withPoint.add(*number->withPoint);
      if (number->withComma) column.withComma.add(*number->withComma);
    } else if (!isMissing(cell)) {
      if (!column.isGuessed) throwNotANumber(line, column.learned.name, cell);
      if (column.texts++ == 0) {
        column.firstText = line;
        column.text = cell;
      }
    }
  }

  static void takeDigits(Column& column, std::string_view cell) {
    column.areDigits =
        std::all_of(cell.begin(), cell.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (column.code.empty() && cell.size() > 1 && cell[0] == '0') column.code = cell;
  }

  [[noreturn]] void throwNotANumber(std::uint64_t line, const std::string& name,
                                    std::string_view cell) const {
    throw DataError("data-damaged",
                    lineOf(file_.path(), line) + ": '" + printable(cell, 60) + "' in the column '" +
                        printable(name, 60) + "' is not a number",
                    "correct the cell, or list the column in data.categorical");
  }

  // Guessed columns collect categories too, until they have too many.
  static void takeCategory(Column& column, std::string_view cell) {
    cell = trimmed(cell);
    auto& categories = column.learned.categories;
    if (column.hasTooMany || isMissing(cell) || categories.contains(cell)) return;
    if (categories.size() == kMaxCategories) {
      column.hasTooMany = true;
      return;
    }
    categories.emplace(cell, 0);
  }

  // Whether the column is not an input, because it has no name. Warns if it is one, but has IDs.
  bool isLeftOut(Column& column) const {
    if (!column.mayBeIndex) {
      if (!column.isGuessed) return false;
      if (column.ids.areIds(column.learned.name)) {
        warnOfIds(column);
      } else if (column.areDigits && !column.code.empty() && column.texts == 0) {
        warnOfCodes(column);
      }
      return false;
    }
    const std::string& name = column.learned.name;
    const std::string which =
        name.empty() ? "column " + std::to_string(column.source + 1) + ", without a name,"
                     : "the column '" + printable(name, 60) + "'";
    if (name.empty() && column.isEmpty) return true;
    if (column.ids.areDifferent()) {
      processLog()->warn(
          "{}: {} is left out, because it holds row numbers, as pandas writes its index; to use "
          "it, "
          "give it a name",
          file_.path(), which);
      return true;
    }
    if (!name.empty()) {
      processLog()->warn("{}: {} is an input; to leave it out, {}", file_.path(), which,
                         kIgnoreHint);
      return false;
    }
    throw DataError(
        "data-damaged",
        lineOf(file_.path(), 1) + ": column " + std::to_string(column.source + 1) + " has no name",
        std::string("give it a name in the first line, or ") + kListHint);
  }

  void warnOfIds(const Column& column) const {
    processLog()->warn(
        "{}: the column '{}' has a different integer in each row, as IDs and row numbers do, and "
        "is an input; to leave it out, {}; to use it without this warning, name the columns to use "
        "in data.numeric and data.categorical",
        file_.path(), printable(column.learned.name, 60), kIgnoreHint);
  }

  void warnOfCodes(const Column& column) const {
    processLog()->warn(
        "{}: the column '{}' has leading zeros, such as in '{}', as postcodes and other codes do, "
        "but is read as numbers; to use its values as categories, {}; to leave it out, {}",
        file_.path(), printable(column.learned.name, 60), printable(column.code, 60), kListHint,
        kIgnoreHint);
  }

  // Decides whether a guessed column is numeric. A column with only a few texts among its numbers
  // probably has typing errors. As categories, its numbers would be useless.
  void guess(Column& column) const {
    if (!column.isGuessed || column.texts == 0) return;
    const auto& categories = column.learned.categories;
    constexpr std::size_t kFew = 20;  // so few numbers may be codes
    const auto numbers = static_cast<std::size_t>(
        std::count_if(categories.begin(), categories.end(),
                      [](const auto& each) { return parseNumber(each.first).has_value(); }));
    const bool areNumbers = numbers > kFew && 2 * numbers > categories.size();
    if (column.count <= column.texts && !areNumbers) {
      column.learned.isNumeric = false;
      refuseNearNumbers(column);
      warnOfManyCategories(column);
      return;
    }
    if (file_.report()) return;  // all texts are reported when the rows are read
    throw DataError("data-damaged",
                    lineOf(file_.path(), column.firstText) + ": '" + printable(column.text, 60) +
                        "' in the column '" + printable(column.learned.name, 60) +
                        "' is not a number, but " + std::to_string(column.count) +
                        " other cells of the column are numbers",
                    std::string("correct the cell, ") +
                        (keys_.missing == "mean" ? "empty it, or "
                                                 : "empty it and set data.missing: mean, or ") +
                        kListHint);
  }

  // Many values such as 12 kg, 3 h or 2024-05-01, each of which would be an input of its own.
  void refuseNearNumbers(const Column& column) const {
    const auto& categories = column.learned.categories;
    const auto near = static_cast<std::size_t>(
        std::count_if(categories.begin(), categories.end(),
                      [](const auto& each) { return beginsAsNumber(each.first); }));
    if (near <= kManyCategories || 2 * near <= categories.size()) return;
    throw DataError("data-damaged",
                    lineOf(file_.path(), column.firstText) + ": the column '" +
                        printable(column.learned.name, 60) + "' has " +
                        std::to_string(categories.size()) + (column.hasTooMany ? " or more" : "") +
                        " different values that begin with a digit, such as '" +
                        printable(column.text, 60) + "', but are not numbers",
                    "write them as numbers, without units and dates (a date as days), or list the "
                    "column in data.ignore; for codes, list it in data.categorical, and the other "
                    "columns to use there or in data.numeric");
  }

  static bool beginsAsNumber(std::string_view cell) {
    for (const std::string_view sign : {"-", "+", "<", ">", "~", "\xE2\x88\x92"}) {
      if (!cell.starts_with(sign)) continue;
      cell = trimmed(cell.substr(sign.size()));
      break;
    }
    return !cell.empty() && cell[0] >= '0' && cell[0] <= '9';
  }

  void warnOfManyCategories(const Column& column) const {
    const std::size_t values = column.learned.categories.size();
    if (column.hasTooMany || values <= kManyCategories || 2 * values <= rows_) return;
    processLog()->warn(
        "{}: the column '{}' has {} different values in {} rows, such as '{}', and each is an "
        "input of its own; to leave it out, {}",
        file_.path(), printable(column.learned.name, 60), values, rows_, printable(column.text, 60),
        kIgnoreHint);
  }

  // Columns that the model does not use may be dates and codes, so they count only if no other
  // column decides.
  MarkEvidence marks() const {
    MarkEvidence all = targetForm_.evidence();
    for (const Column& column : columns_) {
      if (column.learned.isNumeric) all.add(column.form.evidence());
    }
    return all.point || all.comma ? all : unused_.evidence();
  }

  void finish(Column& column, const MarkEvidence& marks) const {
    if (column.learned.isNumeric) return finishNumbers(column, marks);
    finishCategories(column);
  }

  void finishNumbers(Column& column, const MarkEvidence& marks) const {
    FeatureColumn& learned = column.learned;
    learned.categories.clear();
    const std::string about = "the column '" + printable(learned.name, 60) + "'";
    if (column.count == 0) {
      throw DataError("data-damaged", file_.path() + " has no value in " + about,
                      column.isGuessed
                          ? "remove the column from the file, or " + std::string(kIgnoreHint)
                          : "remove the column from data.numeric");
    }
    learned.form = column.form.form(file_.path(), about, decimalMarkFrom(keys_.decimal), marks);
    const Moments& moments =
        learned.form.mark == DecimalMark::comma ? column.withComma : column.withPoint;
    learned.mean = moments.mean;
    const double variance = moments.squares / static_cast<double>(moments.count);
    if (!std::isfinite(moments.mean) || !std::isfinite(variance)) {
      throw DataError(
          "data-damaged",
          file_.path() + " has numbers in " + about + " that are too large to be standardised",
          std::string("scale them, or ") + kListHint);
    }
    learned.stddev = variance > 0 ? std::sqrt(variance) : 1;
  }

  void finishCategories(Column& column) const {
    if (column.hasTooMany) {
      throw DataError("too-many-features",
                      "the column '" + printable(column.learned.name, 60) + "' of " + file_.path() +
                          " has text with more than " + std::to_string(kMaxCategories) +
                          " different values",
                      kListHint);
    }
    std::uint32_t position = 0;
    for (auto& [value, at] : column.learned.categories) at = position++;
  }

  const CsvFile& file_;
  const DataFormatKeys& keys_;
  std::vector<Column> columns_;
  std::optional<std::size_t> target_;  // the position of a target that is a number
  NumberFormLearner targetForm_;
  MarkScan unused_;
  std::uint64_t rows_ = 0;
};

}  // namespace

Json toJson(const FeatureColumn& column) {
  if (column.isNumeric) {
    Json json = {{"name", column.name}, {"mean", column.mean}, {"std", column.stddev}};
    if (const Json form = toJson(column.form); !form.is_null()) json["form"] = form;
    return json;
  }
  Json categories = Json::array();
  for (const auto& [value, position] : column.categories) categories.push_back(value);
  return {{"name", column.name}, {"categories", categories}};
}

FeatureColumn featureColumnFrom(const Json& json) {
  FeatureColumn column;
  column.name = json.at("name");
  column.isNumeric = !json.contains("categories");
  if (column.isNumeric) {
    column.mean = json.at("mean");
    column.stddev = json.at("std");
    column.form = numberFormFrom(json.value("form", Json()));
    return column;
  }
  for (const Json& value : json["categories"]) {
    const auto position = static_cast<std::uint32_t>(column.categories.size());
    column.categories.emplace(value.get<std::string>(), position);
  }
  return column;
}

LearnedColumns learnColumns(const CsvFile& file, const DataFormatKeys& keys) {
  return TableLearner(file, keys).learn();
}

void throwNoRows(const std::string& file) {
  throw DataError("data-empty", file + " has no rows", "give a file with at least one row");
}

}  // namespace cleave
