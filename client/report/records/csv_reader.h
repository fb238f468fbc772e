// Reads one of a run's CSV tables incrementally while the table grows: first the rotated parts
// (NAME.1.csv, NAME.2.csv, …), then NAME.csv. Skips unreadable rows and counts them for problems().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/core/open_file.h"

namespace cleave {

// The requested cells of one row, in the requested order. Valid only during the call.
class CsvRow {
 public:
  explicit CsvRow(std::span<const std::string_view> cells) : cells_(cells) {}

  std::string_view text(std::size_t column) const { return cells_[column]; }
  // The cell's value; empty if the cell is empty or not finite. Text that is not a number marks the
  // row as garbled.
  std::optional<double> number(std::size_t column) const;
  // The seconds since 1970 for a time such as 2026-01-31T12:34:56.789Z. Any other text marks the
  // row as garbled.
  double time(std::size_t column) const;
  bool isGarbled() const { return garbled_.has_value(); }
  std::optional<std::size_t> garbledColumn() const { return garbled_; }  // the first garbled one
  void garble(std::size_t column) const { garbled_ = garbled_.value_or(column); }

 private:
  std::span<const std::string_view> cells_;
  mutable std::optional<std::size_t> garbled_;
};

class CsvReader {
 public:
  // `columns`: the columns to read. The file may have other columns too, in any order. "loss+1"
  // means the column after "loss"; such a column is optional. Cells cannot contain line breaks, so
  // each line is a row, and a damaged row does not affect the others.
  CsvReader(std::string folder, std::string name, std::vector<std::string> columns = {});

  // Adds a column to read, and returns its number in each CsvRow. Call before read().
  std::size_t column(std::string name);

  // Passes each complete new line to `take`, which must check isGarbled() after reading the cells
  // and before using their values.
  void read(const std::function<void(const CsvRow&)>& take);

  bool found() const { return found_; }
  std::uint64_t rows() const { return rows_; }  // rows passed to `take` that were not garbled
  // The column's name in the file; empty if the file does not have the column.
  const std::string& nameOf(std::size_t column) const { return names_[column]; }
  // Returns one sentence per problem. `following`: the run is still in progress, so a missing file
  // or an incomplete last line is not a problem.
  std::vector<std::string> problems(bool following) const;

 private:
  bool openNext();
  bool partIsOver() const;
  void readPart(const std::function<void(const CsvRow&)>& take);
  void takeLine(std::string_view line, const std::function<void(const CsvRow&)>& take);
  void takeHeader();
  void split(std::string_view line);
  void garbled(const std::string& why);
  std::string partPath(std::uint64_t part) const;

  const std::string folder_;
  const std::string name_;
  std::vector<std::string> columns_;
  std::vector<std::optional<std::size_t>> source_;  // index of the column in the file
  std::vector<std::string> names_;                  // names of the columns in the file
  std::vector<std::string_view> cells_, wanted_;
  std::vector<std::string> unquoted_;
  std::string rest_;  // the incomplete last line
  OpenFile file_;
  std::uint64_t part_ = 1;  // number of the open part or, if none is open, of the next one
  std::uint64_t line_ = 0;  // line number within the part
  std::size_t headerCells_ = 0;
  bool found_ = false;
  std::uint64_t rows_ = 0;
  std::uint64_t garbledRows_ = 0;
  std::string firstGarbled_;
  std::string failure_;  // the reason why the file cannot be read further
  bool partsMissing_ = false;
};

}  // namespace cleave
