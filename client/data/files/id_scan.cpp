#include "client/data/files/id_scan.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iterator>
#include <string_view>

#include "client/data/files/cells.h"

namespace cleave {
namespace {

// Whether the name is this word, or ends with it: "user_id", "userId", "user id", but not "paid".
bool endsWithWord(const std::string& name, std::string_view word) {
  const std::string lower = lowerCase(name);
  if (lower == word) return true;
  if (lower.size() <= word.size() || !lower.ends_with(word)) return false;
  const auto before = static_cast<unsigned char>(name[name.size() - word.size() - 1]);
  const bool isUpper =
      std::isupper(static_cast<unsigned char>(name[name.size() - word.size()])) != 0;
  return std::isalnum(before) == 0 || (std::islower(before) != 0 && isUpper);
}

// Columns that count upwards too, but are often inputs.
bool isTimeName(const std::string& name) {
  constexpr std::string_view kWords[] = {"year",   "years", "jahr", "month", "monat", "week",
                                         "woche",  "day",   "days", "tag",   "hour",  "stunde",
                                         "minute", "time",  "zeit", "t",     "age",   "alter"};
  return std::any_of(std::begin(kWords), std::end(kWords),
                     [&](std::string_view word) { return endsWithWord(name, word); });
}

}  // namespace

bool isIdName(const std::string& name) {
  constexpr std::string_view kWords[] = {"id", "ids", "uuid", "guid"};
  constexpr std::string_view kEnds[] = {"nr", "nr.", "nummer"};  // also within a word, in German
  const std::string lower = lowerCase(name);
  return std::any_of(std::begin(kWords), std::end(kWords),
                     [&](std::string_view word) { return endsWithWord(name, word); }) ||
         std::any_of(std::begin(kEnds), std::end(kEnds),
                     [&](std::string_view end) { return lower.ends_with(end); });
}

void IdScan::add(const std::optional<NumberCell>& number) {
  constexpr std::size_t kFirst = 64;
  if (!areIntegers_) return;
  // pandas writes integers as 1.0 if a cell of the column was missing.
  areIntegers_ = number && !number->isAmbiguous() && number->withPoint && number->unit.empty() &&
                 *number->withPoint >= 0 && *number->withPoint == std::floor(*number->withPoint);
  if (!areIntegers_) return values_.clear();
  values_.push_back(*number->withPoint);
  // At each power of two, so that columns that repeat values take no memory.
  const bool isPower = (values_.size() & (values_.size() - 1)) == 0;
  if (values_.size() >= kFirst && isPower) dropIfRepeated();
}

void IdScan::dropIfRepeated() {
  std::sort(values_.begin(), values_.end());
  if (std::adjacent_find(values_.begin(), values_.end()) == values_.end()) return;
  areIntegers_ = false;
  values_ = {};
}

bool IdScan::areDifferent() {
  dropIfRepeated();
  return areIntegers_;
}

bool IdScan::areIds(const std::string& name) {
  constexpr std::size_t kFew = 20;  // fewer may be different and dense by coincidence
  if (!areDifferent() || values_.size() < 2) return false;
  if (isIdName(name)) return true;
  const double range = values_.back() - values_.front() + 1;
  return values_.size() >= kFew && range < 2 * static_cast<double>(values_.size()) &&
         !isTimeName(name);
}

}  // namespace cleave
