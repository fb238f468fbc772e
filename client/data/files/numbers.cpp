#include "client/data/files/numbers.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>
#include <vector>

#include "client/data/files/cells.h"
#include "client/data/files/csv_file.h"
#include "common/core/printable.h"

namespace cleave {
namespace {

constexpr std::string_view kMinus = "\xE2\x88\x92";       // U+2212
constexpr std::string_view kApostrophe = "\xE2\x80\x99";  // U+2019

// Signs and codes of currencies, and the names that error messages and files use.
struct UnitRow {
  std::string_view text, unit;
};
constexpr UnitRow kUnits[] = {
    {"%", "%"},     {"€", "EUR"},   {"EUR", "EUR"}, {"Euro", "EUR"}, {"US$", "USD"},
    {"$", "USD"},   {"USD", "USD"}, {"£", "GBP"},   {"GBP", "GBP"},  {"¥", "JPY"},
    {"JPY", "JPY"}, {"CNY", "CNY"}, {"RMB", "CNY"}, {"CHF", "CHF"},  {"SFr.", "CHF"},
    {"Fr.", "CHF"}, {"SEK", "SEK"}, {"NOK", "NOK"}, {"DKK", "DKK"},  {"ISK", "ISK"},
    {"kr.", "kr"},  {"kr", "kr"},   {"PLN", "PLN"}, {"zł", "PLN"},   {"CZK", "CZK"},
    {"Kč", "CZK"},  {"HUF", "HUF"}, {"Ft", "HUF"},  {"RON", "RON"},  {"lei", "RON"},
    {"BGN", "BGN"}, {"RUB", "RUB"}, {"₽", "RUB"}, {"UAH", "UAH"},  {"₴", "UAH"},
    {"TRY", "TRY"}, {"₺", "TRY"},   {"INR", "INR"}, {"₹", "INR"},    {"Rs.", "INR"},
    {"Rs", "INR"},  {"KRW", "KRW"}, {"₩", "KRW"},   {"ILS", "ILS"},  {"₪", "ILS"},
    {"R$", "BRL"},  {"BRL", "BRL"}, {"MXN", "MXN"}, {"CA$", "CAD"},  {"C$", "CAD"},
    {"CAD", "CAD"}, {"A$", "AUD"},  {"AUD", "AUD"}, {"NZ$", "NZD"},  {"NZD", "NZD"},
    {"HK$", "HKD"}, {"HKD", "HKD"}, {"S$", "SGD"},  {"SGD", "SGD"},  {"THB", "THB"},
    {"฿", "THB"},   {"TWD", "TWD"}, {"NGN", "NGN"}, {"₦", "NGN"},    {"PHP", "PHP"},
    {"₱", "PHP"},   {"VND", "VND"}, {"₫", "VND"},   {"BTC", "BTC"},  {"₿", "BTC"},
    {"AED", "AED"}, {"SAR", "SAR"}, {"EGP", "EGP"}, {"ARS", "ARS"},  {"CLP", "CLP"},
    {"COP", "COP"}, {"IDR", "IDR"}, {"MYR", "MYR"}, {"CN¥", "CNY"}};

bool isDigit(char c) { return c >= '0' && c <= '9'; }

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool takeEnd(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

// Takes the longest unit, R$ rather than $, with `takeOne` (take or takeEnd). Returns its name, or
// an empty text.
template <typename TakeOne>
std::string_view takeUnit(std::string_view& text, const TakeOne& takeOne) {
  UnitRow longest;
  for (const UnitRow& row : kUnits) {
    std::string_view rest = text;
    if (row.text.size() > longest.text.size() && takeOne(rest, row.text)) longest = row;
  }
  takeOne(text, longest.text);
  return longest.unit;
}

enum class Separator : std::uint8_t { point, comma, blank, apostrophe };

// The digits of a number and what separates them, without sign, unit and exponent.
struct Mantissa {
  std::vector<std::string_view> groups;  // one more than separators; the first or last may be empty
  std::vector<Separator> separators;
};

std::optional<Mantissa> splitMantissa(std::string_view text) {
  Mantissa mantissa;
  while (true) {
    const auto end = std::find_if_not(text.begin(), text.end(), isDigit);
    const auto length = static_cast<std::size_t>(end - text.begin());
    mantissa.groups.push_back(text.substr(0, length));
    text.remove_prefix(length);
    if (text.empty()) return mantissa;
    if (take(text, ".")) {
      mantissa.separators.push_back(Separator::point);
    } else if (take(text, ",")) {
      mantissa.separators.push_back(Separator::comma);
    } else if (take(text, "'") || take(text, kApostrophe)) {
      mantissa.separators.push_back(Separator::apostrophe);
    } else if (const std::size_t blank = blankLength(text)) {
      text.remove_prefix(blank);
      mantissa.separators.push_back(Separator::blank);
    } else {
      return std::nullopt;
    }
  }
}

// Whether it is an IP address rather than a number with three points between thousands.
bool isIpAddress(const Mantissa& mantissa) {
  return mantissa.groups.size() == 4 &&
         std::all_of(mantissa.separators.begin(), mantissa.separators.end(),
                     [](Separator each) { return each == Separator::point; }) &&
         std::all_of(mantissa.groups.begin(), mantissa.groups.end(), [](std::string_view group) {
           return !group.empty() && (group.size() < 3 || (group.size() == 3 && group <= "255"));
         });
}

// Whether the first `count` groups are digits grouped by thousands, or in the Indian way:
// 12,34,567.
bool areThousands(const Mantissa& mantissa, std::size_t count) {
  const std::vector<std::string_view>& groups = mantissa.groups;
  if (groups[0].empty() || groups[0].size() > 3 || groups[0][0] == '0') return false;
  if (groups[count - 1].size() != 3) return false;
  const auto allHave = [&](std::size_t digits) {
    return std::all_of(groups.begin() + 1, groups.begin() + static_cast<std::ptrdiff_t>(count) - 1,
                       [=](std::string_view group) { return group.size() == digits; });
  };
  return allHave(3) || (allHave(2) && groups[0].size() <= 2);
}

struct MarkedValue {
  double value;
  std::size_t digits;
  bool isSpaced;
};

// The value with this decimal mark. `exponent`: "e5", or empty.
std::optional<MarkedValue> valueWith(const Mantissa& mantissa, std::string_view exponent,
                                     DecimalMark mark) {
  const Separator decimal = mark == DecimalMark::point ? Separator::point : Separator::comma;
  const std::vector<Separator>& separators = mantissa.separators;
  const bool hasDecimals = !separators.empty() && separators.back() == decimal;
  const std::size_t integers = mantissa.groups.size() - (hasDecimals ? 1 : 0);
  bool isSpaced = false;
  if (integers > 1) {  // thousands
    const Separator separator = separators.front();
    const bool isUniform = std::all_of(
        separators.begin(), separators.begin() + static_cast<std::ptrdiff_t>(integers) - 1,
        [=](Separator each) { return each == separator; });
    if (!isUniform || separator == decimal || !exponent.empty()) return std::nullopt;
    if (!areThousands(mantissa, integers)) return std::nullopt;
    isSpaced = separator == Separator::blank || separator == Separator::apostrophe;
  }
  std::string digits;
  for (std::size_t n = 0; n < integers; ++n) digits += mantissa.groups[n];
  const std::size_t integerDigits = digits.size();
  if (digits.empty() && (!hasDecimals || mantissa.groups.back().empty())) return std::nullopt;
  if (digits.empty()) digits = "0";
  if (hasDecimals && !mantissa.groups.back().empty()) {
    digits += '.';
    digits += mantissa.groups.back();
  }
  digits += exponent;
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || !std::isfinite(value))
    return std::nullopt;
  return MarkedValue{value, integerDigits, isSpaced};
}

// Integers, and numbers with a point that cannot separate thousands, are most numbers of most
// files.
std::optional<NumberCell> parsePlain(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    return std::nullopt;
  if (text.starts_with('-')) text.remove_prefix(1);
  const std::size_t point = text.find('.');
  const bool isInteger = std::all_of(text.begin(), text.end(), isDigit);
  if (point == std::string_view::npos && !isInteger) return std::nullopt;  // an exponent
  if (isInteger) return NumberCell{value, value, false, text.size(), false, {}};
  if (point > 0 && point <= 3 && text[0] != '0' && text.size() == point + 4) return std::nullopt;
  return NumberCell{value, std::nullopt, true, point, false, {}};
}

std::string textOf(double value) {
  std::array<char, 32> digits{};
  return {digits.data(), std::to_chars(digits.begin(), digits.end(), value).ptr};
}

const char* nameOf(DecimalMark mark) { return mark == DecimalMark::point ? "point" : "comma"; }

// Whether the separator of an ambiguous number separates thousands if this is the decimal mark.
bool isThousands(const NumberCell& number, DecimalMark mark) {
  return std::abs(*number.with(mark)) ==
         std::max(std::abs(*number.withPoint), std::abs(*number.withComma));
}

std::string inQuotes(const std::string& cell) { return "'" + printable(cell, 60) + "'"; }

constexpr const char* kFormHint =
    "write all numbers of the column in one form, or set data.decimal: point or comma; for "
    "categories, list the column in data.categorical";

[[noreturn]] void refuse(const std::string& fault, const std::string& hint) {
  throw DataError("ambiguous-number", fault, hint);
}

}  // namespace

std::optional<DecimalMark> decimalMarkFrom(const std::string& key) {
  if (key == "point") return DecimalMark::point;
  if (key == "comma") return DecimalMark::comma;
  return std::nullopt;
}

nlohmann::json toJson(const NumberForm& form) {
  if (form == NumberForm{}) return nullptr;
  nlohmann::json json = {{"decimal", nullptr}, {"grouped", form.isGrouped}, {"unit", form.unit}};
  if (form.mark) json["decimal"] = nameOf(*form.mark);
  return json;
}

NumberForm numberFormFrom(const nlohmann::json& json) {
  if (json.is_null()) return {};
  NumberForm form{std::nullopt, json.at("grouped"), json.at("unit")};
  if (!json.at("decimal").is_null()) form.mark = decimalMarkFrom(json.at("decimal"));
  return form;
}

std::string toString(const NumberForm& form) {
  return (form.mark ? "a decimal " + std::string(nameOf(*form.mark)) : "any decimal mark") +
         (form.unit.empty() ? "" : ", in " + form.unit);
}

void applyConfigured(NumberForm& form, std::optional<DecimalMark> configured) {
  if (!configured) return;
  form.mark = configured;
  form.isGrouped = true;
}

std::optional<NumberCell> parseNumber(std::string_view cell) {
  constexpr std::size_t kMaxBytes = 100;  // of a number that is not plain
  std::string_view text = trimmed(cell);
  if (auto plain = parsePlain(text)) return plain;
  if (text.size() > kMaxBytes || std::none_of(text.begin(), text.end(), isDigit))
    return std::nullopt;
  bool isNegative = false, hasSign = false;
  std::string_view unit;
  const auto takeSign = [&] {
    if (hasSign) return false;
    const bool isMinus = take(text, "-") || take(text, kMinus);
    hasSign = isMinus || take(text, "+");
    isNegative |= isMinus;
    return hasSign;
  };
  const auto takePrefix = [&] {
    if (takeSign()) return true;
    if (!unit.empty()) return false;
    unit = takeUnit(text, take);
    return !unit.empty();
  };
  while (takePrefix()) text = trimmed(text);
  if (!hasSign && text.starts_with('(') && text.ends_with(')')) {  // negative, as in accounts
    text = trimmed(text.substr(1, text.size() - 2));
    isNegative = hasSign = true;
    while (takePrefix()) text = trimmed(text);
  }
  if (unit.empty()) unit = takeUnit(text, takeEnd);
  text = trimmed(text);
  if (!hasSign && (takeEnd(text, "-") || takeEnd(text, kMinus))) {  // 12-, as SAP writes
    isNegative = true;
    text = trimmed(text);
  }
  std::string exponent;
  if (const std::size_t at = text.find_first_of("eE"); at != std::string_view::npos) {
    std::string_view power = text.substr(at + 1);
    text = text.substr(0, at);
    exponent = take(power, "-") || take(power, kMinus) ? "e-" : "e";
    if (exponent == "e") take(power, "+");
    if (power.empty() || !std::all_of(power.begin(), power.end(), isDigit)) return std::nullopt;
    exponent += power;
  }
  const auto mantissa = splitMantissa(text);
  if (!mantissa || isIpAddress(*mantissa)) return std::nullopt;
  NumberCell number;
  number.unit = unit;
  number.hasMark = std::any_of(
      mantissa->separators.begin(), mantissa->separators.end(),
      [](Separator each) { return each == Separator::point || each == Separator::comma; });
  for (const DecimalMark mark : {DecimalMark::point, DecimalMark::comma}) {
    const auto value = valueWith(*mantissa, exponent, mark);
    if (!value) continue;
    const double scaled = (isNegative ? -1 : 1) * value->value / (unit == "%" ? 100 : 1);
    (mark == DecimalMark::point ? number.withPoint : number.withComma) = scaled;
    number.digits = value->digits;
    number.isSpaced = value->isSpaced;
  }
  if (!number.withPoint && !number.withComma) return std::nullopt;
  return number;
}

std::optional<double> readNumber(std::string_view cell, const NumberForm& form) {
  const std::optional<NumberCell> number = parseNumber(cell);
  if (!number) return std::nullopt;
  if ((number->unit == "%") != (form.unit == "%")) return std::nullopt;
  if (!number->unit.empty() && number->unit != form.unit) return std::nullopt;
  if (!form.mark) {
    if (number->isAmbiguous()) return std::nullopt;
    return number->withPoint ? number->withPoint : number->withComma;
  }
  // Without thousands in the training set, 1,234 is more likely to be 1.234 in another form.
  if (number->isAmbiguous() && !form.isGrouped && isThousands(*number, *form.mark))
    return std::nullopt;
  return number->with(*form.mark);
}

UnreadNumber unreadNumber(std::string_view cell, const NumberForm& form) {
  const std::optional<NumberCell> number = parseNumber(cell);
  NumberForm free = form;
  free.isGrouped = true;
  if (number && number->isAmbiguous()) {
    const std::string either = textOf(*number->withPoint) + " or " + textOf(*number->withComma);
    free.mark = DecimalMark::point;
    if (!form.mark && readNumber(cell, free)) {
      return {"may be " + either + ", and no number of the training set decides",
              "set data.decimal: point or comma, whichever is the file's decimal mark"};
    }
    free.mark = form.mark;
    if (form.mark && readNumber(cell, free)) {
      return {"may be " + either + ", as the column has no thousands in the training set",
              "write the number without a separator of thousands; if it is " +
                  textOf(*number->with(*form.mark)) + ", set data.decimal: " + nameOf(*form.mark)};
    }
  }
  return {"is not a number with " + toString(form) + ", as in the training set",
          "write the number as in the training set"};
}

void MarkEvidence::add(const MarkEvidence& other) {
  point |= other.point;
  comma |= other.comma;
  groupsWithPoint |= other.groupsWithPoint;
  groupsWithComma |= other.groupsWithComma;
}

void NumberFormLearner::add(const NumberCell& number, std::string_view cell, std::uint64_t line) {
  if (number.isAmbiguous()) {
    const bool hasPoint = cell.find('.') != std::string_view::npos;
    (hasPoint ? ambiguousPoint_ : ambiguousComma_).set(cell, line);
    (hasPoint ? groupsWithComma_ : groupsWithPoint_) = true;
  } else if (!number.hasMark) {
    if (!number.isSpaced) (number.digits <= 3 ? hasShort_ : hasLong_) = true;
  } else if (number.withPoint && !number.withComma) {
    onlyPoint_.set(cell, line);
    groupsWithPoint_ |= cell.find(',') != std::string_view::npos;
  } else if (number.withComma && !number.withPoint) {
    onlyComma_.set(cell, line);
    groupsWithComma_ |= cell.find('.') != std::string_view::npos;
  }
  if (number.unit.empty()) {
    noUnit_.set(cell, line);
  } else if (unit_.line == 0) {
    unit_.set(cell, line, number.unit);
  } else if (number.unit != unit_.unit) {
    otherUnit_.set(cell, line, number.unit);
  }
}

void NumberFormLearner::checkMark(const std::string& path, const std::string& about,
                                  DecimalMark mark) const {
  const Example& other = mark == DecimalMark::point ? onlyComma_ : onlyPoint_;
  if (other.line == 0) return;
  const bool isPoint = mark == DecimalMark::point;
  refuse(lineOf(path, other.line) + ": " + inQuotes(other.cell) + " in " + about +
             " is not a number with data.decimal: " + (isPoint ? "point" : "comma"),
         std::string("correct the cell, or set data.decimal: ") + (isPoint ? "comma" : "point"));
}

std::optional<DecimalMark> NumberFormLearner::mark(const std::string& path,
                                                   const std::string& about,
                                                   const MarkEvidence& ofFile) const {
  if (onlyPoint_.line > 0 && onlyComma_.line > 0) {
    const bool pointIsFirst = onlyPoint_.line < onlyComma_.line;
    const Example& first = pointIsFirst ? onlyPoint_ : onlyComma_;
    const Example& second = pointIsFirst ? onlyComma_ : onlyPoint_;
    refuse(lineOf(path, second.line) + ": " + inQuotes(second.cell) + " in " + about +
               " has a decimal " + (pointIsFirst ? "comma" : "point") + ", but " +
               inQuotes(first.cell) + " in line " + std::to_string(first.line) + " has a decimal " +
               (pointIsFirst ? "point" : "comma"),
           kFormHint);
  }
  if (onlyComma_.line > 0) return DecimalMark::comma;
  if (onlyPoint_.line > 0) return DecimalMark::point;
  const bool hasPoint = ambiguousPoint_.line > 0, hasComma = ambiguousComma_.line > 0;
  if (!hasPoint && !hasComma) return ofFile.only();
  if (hasPoint != hasComma && ofFile.only()) return ofFile.only();
  // 1.234 in every cell is usually a decimal point. Among integers below 1000 it may be 1234.
  const bool isUsual = hasPoint && !hasComma && !ofFile.comma && (hasLong_ || !hasShort_);
  if (isUsual) return DecimalMark::point;
  const Example& example = hasComma ? ambiguousComma_ : ambiguousPoint_;
  const std::optional<NumberCell> number = parseNumber(example.cell);
  refuse(lineOf(path, example.line) + ": " + inQuotes(example.cell) + " in " + about + " may be " +
             textOf(*number->withPoint) + " or " + textOf(*number->withComma) +
             ", and no other number of the file decides",
         "set data.decimal: point or comma, whichever is the file's decimal mark");
}

std::string NumberFormLearner::unit(const std::string& path, const std::string& about) const {
  if (unit_.line == 0) return "";
  const bool isPercent = unit_.unit == "%" || otherUnit_.unit == "%";
  const Example* other = otherUnit_.line > 0             ? &otherUnit_
                         : isPercent && noUnit_.line > 0 ? &noUnit_
                                                         : nullptr;
  if (other == nullptr) return unit_.unit;
  refuse(lineOf(path, std::max(other->line, unit_.line)) + ": " + about + " has " +
             inQuotes(unit_.cell) + " in line " + std::to_string(unit_.line) + ", but " +
             inQuotes(other->cell) + " in line " + std::to_string(other->line),
         "write all numbers of the column in the same unit; for categories, list the column in "
         "data.categorical");
}

NumberForm NumberFormLearner::form(const std::string& path, const std::string& about,
                                   std::optional<DecimalMark> configured,
                                   const MarkEvidence& ofFile) const {
  NumberForm form;
  form.mark = configured ? configured : mark(path, about, ofFile);
  if (form.mark) checkMark(path, about, *form.mark);
  const auto isGroupedIn = [&](const MarkEvidence& evidence) {
    return form.mark == DecimalMark::point   ? evidence.groupsWithPoint
           : form.mark == DecimalMark::comma ? evidence.groupsWithComma
                                             : false;
  };
  // A column with 25000 would have 25.000 if its thousands were grouped.
  form.isGrouped = configured || isGroupedIn(evidence()) || (!hasLong_ && isGroupedIn(ofFile));
  form.unit = unit(path, about);
  return form;
}

void MarkScan::add(std::span<const std::string_view> cells, std::uint64_t line) {
  for (Column& column : columns_) {
    if (column.hasText) continue;
    const std::string_view cell = cells[column.source];
    if (const auto number = parseNumber(cell)) {
      column.form.add(*number, cell, line);
    } else {
      column.hasText = !isMissing(cell);
    }
  }
}

MarkEvidence MarkScan::evidence() const {
  MarkEvidence all;
  for (const Column& column : columns_) {
    if (!column.hasText) all.add(column.form.evidence());
  }
  return all;
}

}  // namespace cleave
