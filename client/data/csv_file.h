// Reads tables that users provide: CSV (RFC 4180) and TSV, with a header. (For tables that Cleave
// writes itself, see client/report/csv_reader.h.)
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cleave {

// Whether the path has a table's extension: .csv, .tsv, .csv.gz, .tsv.gz.
bool isTablePath(const std::string& path);

// "FILE:LINE"
std::string lineOf(const std::string& path, std::uint64_t line);

// Throws UsageError "data-damaged" if `text` is not UTF-8. Names of columns, categories and classes
// must be UTF-8.
void checkUtf8(std::string_view text, const std::string& path, std::uint64_t line);

class CsvFile {
 public:
  // Reads the file into memory, plain or gzip. Throws UsageError: data-missing, data-empty,
  // data-damaged.
  explicit CsvFile(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<std::string>& header() const { return header_; }
  std::optional<std::size_t> find(std::string_view column) const;
  // The position of a column. Throws UsageError "no-column", which lists the columns.
  std::size_t column(std::string_view name, const std::string& hint) const;

  // Calls take(line, cells) for each row; `line` is the row's first line. Cells are valid only
  // during the call. Blank lines are skipped. Throws UsageError "data-damaged" with FILE:LINE if a
  // quote is not closed, or a row has more or fewer cells than the header.
  void forEachRow(const std::function<void(std::uint64_t line,
                                           std::span<const std::string_view> cells)>& take) const;

 private:
  class Parser;
  char findDelimiter() const;

  std::string path_;
  std::vector<std::uint8_t> bytes_;
  char delimiter_;
  std::vector<std::string> header_;
};

}  // namespace cleave
