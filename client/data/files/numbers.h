// Reads numbers in the forms in which people, locales and spreadsheets write them: 1234.5, 1,234.5,
// 1.234,5, 1 234,5, 1'234.5, (12), -12 %, $ 12, 12 EUR. No Torch.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/data/files/damage.h"

namespace cleave {

enum class DecimalMark : std::uint8_t { point, comma };

// The value of the key data.decimal: point, comma, or empty if the data decide.
std::optional<DecimalMark> decimalMarkFrom(const std::string& key);

// How the numbers of a column are written.
struct NumberForm {
  // Empty: neither the column nor the other columns of the training set show the mark. Then 1.5 and
  // 1,5 are read as what they must be, and 1.234 is no number of this form.
  std::optional<DecimalMark> mark = DecimalMark::point;
  bool isGrouped = false;  // whether 1,234 (or with a decimal comma 1.234) is 1234
  std::string unit = {};   // "%", or a currency such as "EUR"; empty: none

  bool operator==(const NumberForm&) const = default;
};
// Null for the default form. numberFormFrom() accepts null.
nlohmann::json toJson(const NumberForm& form);
NumberForm numberFormFrom(const nlohmann::json& json);
std::string toString(const NumberForm& form);  // "a decimal comma, in EUR"
// For the sets that use the form of the training set: data.decimal, which may be set for one call
// of eval or predict, is the mark of their files, and allows thousands.
void applyConfigured(NumberForm& form, std::optional<DecimalMark> configured);

// A cell that is a finite number with at least one decimal mark. Percentages are divided by 100.
struct NumberCell {
  std::optional<double> withPoint, withComma;
  bool hasMark = false;    // whether it has a point or a comma
  std::size_t digits = 0;  // of the integer part
  bool isSpaced = false;   // whether blanks or apostrophes separate thousands
  std::string_view unit = {};

  // With both marks it is a number, but a different one, such as 1,234.
  bool isAmbiguous() const { return withPoint && withComma && *withPoint != *withComma; }
  std::optional<double> with(DecimalMark mark) const {
    return mark == DecimalMark::point ? withPoint : withComma;
  }
};
std::optional<NumberCell> parseNumber(std::string_view cell);

// The number in a cell of a column with this form. Empty if the cell is no number of this form.
std::optional<double> readNumber(std::string_view cell, const NumberForm& form);
// Why readNumber() returns nothing for the cell, which is not a missing value, for an error: the
// fault follows the cell ("is not a number …").
struct UnreadNumber {
  std::string fault, hint;
};
UnreadNumber unreadNumber(std::string_view cell, const NumberForm& form);

// What the columns of a file prove about its decimal mark.
struct MarkEvidence {
  bool point = false, comma = false;
  bool groupsWithPoint = false, groupsWithComma = false;  // thousands, by decimal mark
  std::optional<DecimalMark> only() const {
    if (point == comma) return std::nullopt;
    return point ? DecimalMark::point : DecimalMark::comma;
  }
  void add(const MarkEvidence& other);
};

// Learns the form of a column's numbers from the training set.
class NumberFormLearner {
 public:
  void add(const NumberCell& number, std::string_view cell, std::uint64_t line);
  MarkEvidence evidence() const {
    return {onlyPoint_.line > 0, onlyComma_.line > 0, groupsWithPoint_, groupsWithComma_};
  }
  // `configured`: data.decimal. `ofFile`: the evidence of all columns of the file. `about` names
  // the column: "the column 'price'". Throws UsageError "ambiguous-number" with FILE:LINE if the
  // cells contradict each other or do not decide.
  NumberForm form(const std::string& path, const std::string& about,
                  std::optional<DecimalMark> configured, const MarkEvidence& ofFile) const;

 private:
  // The first cell of its kind; line 0: none.
  struct Example {
    std::uint64_t line = 0;
    std::string cell;
    std::string unit;
    void set(std::string_view text, std::uint64_t at, std::string_view of = {}) {
      if (line == 0) *this = {at, std::string(text), std::string(of)};
    }
  };
  std::optional<DecimalMark> mark(const std::string& path, const std::string& about,
                                  const MarkEvidence& ofFile) const;
  void checkMark(const std::string& path, const std::string& about, DecimalMark mark) const;
  std::string unit(const std::string& path, const std::string& about) const;

  Example onlyPoint_, onlyComma_;            // numbers with one of the marks only
  Example ambiguousPoint_, ambiguousComma_;  // such as 1.234 and 1,234
  Example unit_, otherUnit_, noUnit_;
  bool hasShort_ = false, hasLong_ = false;  // integers of up to 3 digits, and of more, ungrouped
  bool groupsWithPoint_ = false, groupsWithComma_ = false;  // by decimal mark
};

// Learns what columns that are not read as numbers prove about the file's decimal mark. A column
// with a text proves nothing.
class MarkScan {
 public:
  void addColumn(std::size_t source) { columns_.push_back({source, {}, false}); }
  void add(std::span<const std::string_view> cells, std::uint64_t line);
  MarkEvidence evidence() const;

 private:
  struct Column {
    std::size_t source;  // position in the file
    NumberFormLearner form;
    bool hasText;
  };
  std::vector<Column> columns_;
};

}  // namespace cleave
