// Reads one of a run's tables bit by bit while it grows: first the parts that were rotated away
// (NAME.1.csv, NAME.2.csv, …), then NAME.csv. Tolerant: what cannot be read is left out and
// counted, and problems() says so.
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

// The wanted cells of one row, in the order in which they were wanted. Valid during the call only.
class CsvRow {
 public:
  explicit CsvRow(std::span<const std::string_view> cells) : cells_(cells) {}

  std::string_view text(std::size_t column) const { return cells_[column]; }
  // Nothing where the cell is empty or not finite. Text that is no number makes the row garbled.
  std::optional<double> number(std::size_t column) const;
  // Seconds since 1970 of a time such as 2026-01-31T12:34:56.789Z; else the row is garbled.
  double time(std::size_t column) const;
  bool isGarbled() const { return garbled_.has_value(); }
  std::optional<std::size_t> garbledColumn() const { return garbled_; }  // the first
  void garble(std::size_t column) const { garbled_ = garbled_.value_or(column); }

 private:
  std::span<const std::string_view> cells_;
  mutable std::optional<std::size_t> garbled_;
};

class CsvReader {
 public:
  // `columns`: those wanted; a file may have more, and in another order. No cell may hold a line
  // break: each line is a row, so that a damaged one harms no other.
  CsvReader(std::string folder, std::string name, std::vector<std::string> columns);

  // Hands over every whole line that has come since the last call. `take` checks
  // isGarbled() after reading the cells and before using them.
  void read(const std::function<void(const CsvRow&)>& take);

  bool found() const { return found_; }
  std::uint64_t rows() const { return rows_; }  // taken and not garbled
  bool hasColumn(std::size_t column) const { return source_[column].has_value(); }
  // Sentences. `following`: the file may still come and grow.
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
  const std::vector<std::string> columns_;
  std::vector<std::optional<std::size_t>> source_;  // where a column stands in the file
  std::vector<std::string_view> cells_, wanted_;
  std::vector<std::string> unquoted_;
  std::string rest_;  // the unfinished last line
  OpenFile file_;
  std::uint64_t part_ = 1;  // the number of the open part, or of the next one
  std::uint64_t line_ = 0;  // in the part
  std::size_t headerCells_ = 0;
  bool found_ = false;
  std::uint64_t rows_ = 0;
  std::uint64_t garbledRows_ = 0;
  std::string firstGarbled_;
  std::string failure_;  // the file cannot be read any further
  bool partsMissing_ = false;
};

}  // namespace cleave
