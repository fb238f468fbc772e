// Finds columns of a table that number its rows, such as customer numbers, instead of measuring.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/data/files/numbers.h"

namespace cleave {

// Whether a column has this name because it has IDs: "id", "user_id", "userId", "Kundennr".
bool isIdName(const std::string& name);

// Receives all cells of a column.
class IdScan {
 public:
  // `number`: the cell's; empty if it has none.
  void add(const std::optional<NumberCell>& number);
  // Whether areDifferent() may still be true.
  bool mayBeIds() const { return areIntegers_; }
  // Whether all cells are integers from 0 on, each a different one.
  bool areDifferent();
  // Whether the column numbers the rows, as far as values and name show: different integers in a
  // range of less than twice their number, or with the name of an ID. Measurements are rarely so,
  // years and times are.
  bool areIds(const std::string& name);

 private:
  void dropIfRepeated();

  bool areIntegers_ = true;
  std::vector<double> values_;  // sorted up to the last dropIfRepeated()
};

}  // namespace cleave
