// Reads tables that users provide: CSV (RFC 4180) and TSV, with a header, also in the forms that
// spreadsheets write. (For tables that Cleave writes itself, see
// client/report/records/csv_reader.h.)
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/data/files/damage.h"

namespace cleave {

// Whether the path has a table's extension: .csv, .tsv, .csv.gz, .tsv.gz.
bool isTablePath(const std::string& path);

// "FILE:LINE"
std::string lineOf(const std::string& path, std::uint64_t line);

// What forEachRow() does with rows of blanks and delimiters at the end of a file, such as ,,, which
// spreadsheets write. Everywhere else, such rows have missing cells.
enum class EmptyEnd : std::uint8_t { skip, keep };

class CsvFile {
 public:
  // Reads the file into memory, plain or gzip, in UTF-8 or UTF-16. Throws UsageError: data-missing,
  // data-empty, data-damaged. The cells of .csv files are separated by commas, tabs, semicolons or
  // vertical bars: the line sep=… says so, or the first lines decide; a header without any of them
  // is the name of a single column. Lines may end in CR, LF or both. A delimiter at the end of each
  // line, and blanks after all delimiters, are ignored. `report`: receives damaged rows, which all
  // later reads skip.
  explicit CsvFile(const std::string& path, DamageReport report = nullptr);

  const std::string& path() const { return path_; }
  const DamageReport& report() const { return report_; }
  // The names of the columns, without blanks at their ends; empty for a column without a name.
  const std::vector<std::string>& header() const { return header_; }
  char delimiter() const { return delimiter_; }
  std::optional<std::size_t> find(std::string_view column) const;
  // The position of a column. Throws UsageError "no-column", which lists the columns.
  std::size_t column(std::string_view name, const std::string& hint) const;

  // Calls take(line, cells) for each row; `line` is the row's first line. Cells are valid only
  // during the call. Blank lines are skipped. Throws UsageError "data-damaged" with FILE:LINE if a
  // quote is not closed, or a row has more or fewer cells than the header. A row is damaged too if
  // `take` throws a DataError.
  void forEachRow(
      const std::function<void(std::uint64_t line, std::span<const std::string_view> cells)>& take,
      EmptyEnd emptyEnd = EmptyEnd::skip) const;

 private:
  class Parser;
  void takeSeparatorLine();
  char findDelimiter() const;
  bool isConsistent(char delimiter) const;
  bool hasBlanksAfterDelimiters() const;
  void readHeader();
  bool hasRowNames() const;
  std::size_t endOfContent() const;
  [[noreturn]] void refuseRow(std::uint64_t line, std::span<const std::string_view> cells) const;

  std::string path_;
  DamageReport report_;
  mutable std::set<std::uint64_t> damagedLines_;
  std::vector<std::uint8_t> bytes_;
  std::size_t start_ = 0;        // of the header
  std::uint64_t startLine_ = 1;  // its line
  char delimiter_ = 0;
  bool skipsBlanks_ = false;    // at the beginning of each cell
  std::size_t unnamedEnd_ = 0;  // number of columns without a name at the end of the first line
  std::vector<std::string> header_;
};

}  // namespace cleave
