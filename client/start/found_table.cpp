#include "client/start/found_table.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string_view>

#include "client/data/files/cells.h"
#include "client/data/files/csv_file.h"
#include "client/data/files/id_scan.h"
#include "client/data/files/numbers.h"
#include "client/data/formats/encoded_images.h"
#include "common/core/error.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

// The first rows of a table.
struct TableSample {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
  std::vector<IdScan> ids;  // per column, of all rows
};

// Throws UsageError "no-column" if there is no such label.
TableSample readSample(const std::string& path, const std::string& label) {
  constexpr std::size_t kRows = 100;
  struct Enough {};
  const CsvFile file(path);
  if (!label.empty()) file.column(label, "correct the name of the label's column");
  TableSample sample{file.header(), {}, std::vector<IdScan>(file.header().size())};
  try {
    file.forEachRow([&](std::uint64_t, std::span<const std::string_view> cells) {
      if (sample.rows.size() < kRows) {
        sample.rows.emplace_back(cells.begin(), cells.end());
      } else if (std::none_of(sample.ids.begin(), sample.ids.end(),
                              [](const IdScan& ids) { return ids.mayBeIds(); })) {
        throw Enough();
      }
      for (std::size_t c = 0; c < cells.size(); ++c) {
        if (sample.ids[c].mayBeIds()) sample.ids[c].add(parseNumber(cells[c]));
      }
    });
  } catch (const Enough&) {
    // The rows suffice.
  }
  return sample;
}

std::optional<std::string> columnNamed(const TableSample& table,
                                       std::span<const std::string_view> names) {
  for (const std::string_view name : names) {
    for (const std::string& column : table.header) {
      if (lowerCase(column) == name) return column;
    }
  }
  return std::nullopt;
}

// The first column for whose first rows `is` holds.
template <typename Is>
std::optional<std::string> columnWhere(const TableSample& table, Is is) {
  for (std::size_t c = 0; c < table.header.size(); ++c) {
    const bool holds = !table.rows.empty() &&
                       std::all_of(table.rows.begin(), table.rows.end(),
                                   [&](const std::vector<std::string>& row) { return is(row[c]); });
    if (holds) return table.header[c];
  }
  return std::nullopt;
}

std::string labelColumn(const TableSample& table) {
  constexpr std::string_view kNames[] = {"label", "labels", "target", "class", "y", "outcome"};
  return columnNamed(table, kNames).value_or(table.header.back());
}

FoundData foundImageList(const std::string& path, const std::string& label,
                         const std::string& pathColumn) {
  if (pathColumn != "path" || label != "label") {
    throwUnknownData(fmt::format("{} lists images, but its columns are named {} and {}", path,
                                 pathColumn, label),
                     "rename the columns in its first line to path and label");
  }
  return {"list", {}, "a table of images and their labels"};
}

FoundData foundTexts(const TableSample& table, const std::string& label,
                     const std::string& tokenizer) {
  constexpr std::string_view kNames[] = {"text", "sentence", "review", "comment", "content"};
  const auto hasSpaces = [](const std::string& cell) {
    return cell.find(' ') != std::string::npos;
  };
  FoundData found{"text", {}, "a table of texts with a tokenizer.json beside it"};
  std::optional<std::string> text = columnNamed(table, kNames);
  if (!text) text = columnWhere(table, hasSpaces);
  found.keys = {
      {"tokenizer", tokenizer}, {"text", text.value_or(table.header.front())}, {"label", label}};
  for (const std::string& column : table.header) {
    if (column == found.value("text") || column == label) continue;
    found.ignored.emplace_back(column, "only one column of texts is used; for pairs: data.pair");
  }
  return found;
}

// What the cells of a column have in common, as far as the first rows show.
struct ColumnSample {
  std::size_t cells = 0;  // that are not missing
  std::size_t numbers = 0, dates = 0, words = 0;
  bool haveDecimals = false;
  std::set<std::string> values;  // that are not missing

  // A few other cells are faults, which the reader of the table reports with their rows.
  bool areNumbers() const { return 2 * numbers > cells; }
  bool areDates() const { return 2 * dates > cells; }
};

// 2024-05-01, 1.5.2024, 1.5.24, 05/01/24, also followed by a time.
bool isDate(std::string_view cell) {
  std::array<std::size_t, 3> digits{}, numbers{};
  char separator = 0;
  for (std::size_t group = 0; group < digits.size(); ++group) {
    if (group > 0) {
      if (cell.empty() || std::string_view("-./").find(cell[0]) == std::string_view::npos)
        return false;
      if (group == 2 && cell[0] != separator) return false;
      separator = cell[0];
      cell.remove_prefix(1);
    }
    for (; !cell.empty() && cell[0] >= '0' && cell[0] <= '9'; cell.remove_prefix(1)) {
      numbers[group] = 10 * numbers[group] + static_cast<std::size_t>(cell[0] - '0');
      if (++digits[group] > 4) return false;
    }
    if (digits[group] == 0) return false;
  }
  const bool hasTime = cell.size() > 1 && (cell[0] == ' ' || cell[0] == 'T');
  if (!cell.empty() && !hasTime) return false;
  if (separator == '/' || std::find(digits.begin(), digits.end(), 4) != digits.end()) return true;
  // A year of two digits; otherwise it may be a version, such as 1.2.3.
  return digits[2] == 2 && std::min(numbers[0], numbers[1]) <= 12 &&
         std::max(numbers[0], numbers[1]) <= 31;
}

ColumnSample sampleColumn(const TableSample& table, const std::string& column) {
  const auto position = static_cast<std::size_t>(
      std::find(table.header.begin(), table.header.end(), column) - table.header.begin());
  ColumnSample sample;
  for (const std::vector<std::string>& row : table.rows) {
    const std::string_view cell = trimmed(row[position]);
    if (isMissing(cell)) continue;
    ++sample.cells;
    sample.values.emplace(cell);
    const auto number = parseNumber(cell);
    sample.numbers += number ? 1 : 0;
    const double value = !number ? 0 : number->withPoint ? *number->withPoint : *number->withComma;
    sample.haveDecimals |= value != std::floor(value) || (number && number->unit == "%");
    sample.dates += isDate(cell) ? 1 : 0;
    sample.words += 1 + static_cast<std::size_t>(std::count(cell.begin(), cell.end(), ' '));
  }
  return sample;
}

constexpr std::size_t kManyValues = 20;

bool isMostlyDistinct(const ColumnSample& column) {
  return 2 * column.values.size() > column.cells;
}

// Whether the target has values rather than classes: numbers that have decimals, or of which many
// are different. `name`: of the column.
bool hasValues(const ColumnSample& column, const std::string& name) {
  if (!column.areNumbers()) return false;
  constexpr std::string_view kClasses[] = {"label", "labels", "class"};
  const bool areClasses =
      std::find(std::begin(kClasses), std::end(kClasses), lowerCase(name)) != std::end(kClasses);
  return column.haveDecimals ||
         (!areClasses && column.values.size() >= kManyValues && isMostlyDistinct(column));
}

// Why the column is no input; empty if it is one.
std::string reasonToIgnore(const ColumnSample& column, const std::string& name, IdScan& ids) {
  constexpr std::size_t kWords = 3;  // per cell, on average
  if (column.cells < 2) return "";
  const bool areDifferent = column.values.size() == column.cells;
  if (isIdName(name) && areDifferent) return "an ID, which differs in each row";
  if (ids.areIds(name)) return "a different integer in each row, as IDs and row numbers have";
  if (column.areDates()) return "dates; to use them, write them as numbers, such as days";
  if (column.areNumbers() || !isMostlyDistinct(column)) return "";
  if (column.words >= kWords * column.cells)
    return "texts; to use them, put the tokenizer.json of a model of texts beside the table";
  return column.values.size() > kManyValues ? "a different text in most rows" : "";
}

FoundData foundNumbers(TableSample& table, const std::string& label) {
  FoundData found{
      "csv", {{"label", label}}, fmt::format("a table whose target is the column {}", label)};
  if (hasValues(sampleColumn(table, label), label))
    found.keys.emplace_back("target_type", "number");
  for (std::size_t c = 0; c < table.header.size(); ++c) {
    const std::string& column = table.header[c];
    if (column == label || column.empty()) continue;
    const std::string reason = reasonToIgnore(sampleColumn(table, column), column, table.ids[c]);
    if (!reason.empty()) found.ignored.emplace_back(column, reason);
  }
  found.hasInputs = found.ignored.empty() || found.ignored.size() + 1 < table.header.size();
  return found;
}

}  // namespace

void throwUnknownData(const std::string& sentence, const std::string& hint) {
  throw UsageError("unknown-data", sentence, hint);
}

FoundData foundTable(const std::string& path, const std::string& givenLabel) {
  TableSample table = readSample(path, givenLabel);
  const auto isImage = [](const std::string& cell) { return hasImageExtension(cell); };
  const std::string label = givenLabel.empty() ? labelColumn(table) : givenLabel;
  FoundData found;
  const fs::path folder = fs::path(path).parent_path();
  const std::string tokenizer = folder / "tokenizer.json";
  std::error_code ignored;
  if (const auto images = columnWhere(table, isImage)) {
    found = foundImageList(path, label, *images);
  } else if (fs::exists(tokenizer, ignored)) {
    found = foundTexts(table, label, tokenizer);
  } else {
    found = foundNumbers(table, label);
  }
  found.keys.insert(found.keys.begin(), {"train.file", path});
  return found;
}

}  // namespace cleave
