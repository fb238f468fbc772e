// Numbers and labels as people and spreadsheets write them.
#include "client/data/files/numbers.h"

#include <catch2/catch.hpp>

#include "client/data/files/cells.h"
#include "client/data/files/id_scan.h"
#include "client/data/samples/labels.h"
#include "tests/support/error_code.h"

namespace cleave::test {
namespace {

using Names = std::vector<std::string>;

constexpr const char* kNoBreak = "\xC2\xA0";
constexpr const char* kNarrow = "\xE2\x80\xAF";
constexpr const char* kMinus = "\xE2\x88\x92";

TEST_CASE("a number is read with a decimal point or comma, whichever it can have") {
  struct Row {
    std::string cell;
    std::optional<double> point, comma;
  };
  const std::optional<double> none;
  const std::string n = kNoBreak, w = kNarrow, m = kMinus;
  for (const Row& row : std::vector<Row>{
           {"12", 12, 12},
           {" -12 ", -12, -12},
           {"+12", 12, 12},
           {m + "12", -12, -12},
           {n + "12" + w, 12, 12},
           {"1.5", 1.5, none},
           {".5", 0.5, none},
           {"5.", 5, none},
           {"-0.125", -0.125, none},
           {"1,5", none, 1.5},
           {",5", none, 0.5},
           {"0,125", none, 0.125},
           {"1,2345", none, 1.2345},
           {"1.234", 1.234, 1234},
           {"1,234", 1234, 1.234},
           {"12,345", 12345, 12.345},
           {"1234,567", none, 1234.567},
           {"1,234.5", 1234.5, none},
           {"1.234,5", none, 1234.5},
           {"1,234,567", 1234567, none},
           {"1.234.567", none, 1234567},
           {"192.168.100.256", none, 192168100256},
           {"192,168,100,200", 192168100200, none},
           {"1.200.100.200,5", none, 1200100200.5},
           {"12,34,567.8", 1234567.8, none},  // as in India
           {"1 234", 1234, 1234},
           {"1 234,5", none, 1234.5},
           {"1" + n + "234" + n + "567.5", 1234567.5, none},
           {"1" + w + "234,5", none, 1234.5},
           {"1'234.5", 1234.5, none},
           {"1\xE2\x80\x99"
            "234",
            1234, 1234},
           {"(1,234.5)", -1234.5, none},
           {"($ 12.50)", -12.5, none},
           {"12-", -12, -12},
           {"1.234,50-", none, -1234.5},
           {"1.5e3", 1500, none},
           {"1,5E+03", none, 1500},
           {"2e" + m + "3", 0.002, 0.002},
           {"1.234e2", 123.4, none},
           {"12 %", 0.12, 0.12},
           {"12,5%", none, 0.125},
           {"-3" + n + "%", -0.03, -0.03},
           {"€ 12", 12, 12},
           {"-€1,234.56", -1234.56, none},
           {"1.234,56" + n + "€", none, 1234.56},
           {"EUR 7", 7, 7},
           {"7 USD", 7, 7},
           {"$7", 7, 7},
           {"12,50 kr", none, 12.5},
       }) {
    CAPTURE(row.cell);
    const std::optional<NumberCell> number = parseNumber(row.cell);
    REQUIRE(number);
    CHECK(number->withPoint == row.point);
    CHECK(number->withComma == row.comma);
  }
}

TEST_CASE("units are read before and after the number") {
  struct Row {
    std::string text, unit;
  };
  const std::vector<Row> rows = {
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
  for (const Row& row : rows) {
    for (const std::string blank : {"", " ", kNoBreak}) {
      for (const std::string& cell : {row.text + blank + "-12", "-12" + blank + row.text}) {
        CAPTURE(cell);
        const std::optional<NumberCell> number = parseNumber(cell);
        REQUIRE(number);
        CHECK(number->unit == row.unit);
        CHECK(number->withPoint == (row.unit == "%" ? -0.12 : -12));
      }
    }
  }
}

TEST_CASE("other texts are not numbers") {
  for (const std::string cell : {"",
                                 " ",
                                 "-",
                                 "+",
                                 ".",
                                 ",",
                                 "x",
                                 "1x",
                                 "1O",
                                 "12 kg",
                                 "--1",
                                 "+-1",
                                 "1-2",
                                 "1.2.3",
                                 "1..2",
                                 "1,2,3",
                                 "1,23,4",
                                 "12,3456,789",
                                 "0,123,456",
                                 "1,234.567,8",
                                 "1 23",
                                 "1 2345",
                                 "1.234 567",
                                 "01.02.2024",
                                 "2024-01-05",
                                 "10:30",
                                 "inf",
                                 "-inf",
                                 "nan",
                                 "1e999",
                                 "e5",
                                 "1e",
                                 "1e5.5",
                                 "()",
                                 "(-1)-",
                                 "%",
                                 "€",
                                 "1 % %",
                                 "0x10",
                                 "192.168.0.1",
                                 "192.168.100.200",
                                 "-10.100.200.255",
                                 "1.200.100.200 €",
                                 "1 234 567,8,9"}) {
    CAPTURE(cell);
    CHECK_FALSE(parseNumber(cell));
  }
  CHECK_FALSE(parseNumber(std::string(200, ',')));
  CHECK(parseNumber(std::string(300, '1'))->withPoint > 1e298);
}

struct Column {
  explicit Column(const Names& values) {
    std::uint64_t line = 2;
    for (const std::string& cell : values) learner.add(*parseNumber(cell), cell, line++);
  }
  NumberForm form(const std::string& decimal = "auto", MarkEvidence file = {}) const {
    return learner.form("t.csv", "the column 'x'", decimalMarkFrom(decimal), file);
  }
  std::string error(const std::string& decimal = "auto", MarkEvidence file = {}) const {
    CHECK(errorCode([&] { form(decimal, file); }) == "ambiguous-number");
    return errorText([&] { form(decimal, file); });
  }
  NumberFormLearner learner;
};

TEST_CASE("a column's numbers decide its decimal mark") {
  const NumberForm point, groupedPoint{DecimalMark::point, true, {}},
      comma{DecimalMark::comma, false, {}}, groupedComma{DecimalMark::comma, true, {}};
  CHECK(Column({"1", "2.5"}).form() == point);
  CHECK(Column({"1", "2,5"}).form() == comma);
  CHECK(Column({"1.234", "2,5"}).form() == groupedComma);
  CHECK(Column({"1,234", "2.5"}).form() == groupedPoint);
  CHECK(Column({"1,234", "1,234,567"}).form() == groupedPoint);
  CHECK(Column({"1,234.5"}).form() == groupedPoint);
  CHECK(Column({"1.234", "5.678"}).form() == point);  // the usual decimal point
  CHECK(Column({"1.234", "25000"}).form() == point);  // thousands are not grouped
  CHECK(Column({"1.234"}).form("auto", {false, true}) == groupedComma);
  CHECK(Column({"1,234"}).form("auto", {true, false}) == groupedPoint);
}

TEST_CASE("the file decides the form of a column of integers") {
  const Column integers({"1", "250"}), large({"1", "25000"}), percent({"5 %", "70 %"});
  CHECK(integers.form() == NumberForm{std::nullopt, false, {}});
  CHECK(integers.form("auto", {true, true}).mark == std::nullopt);  // the file contradicts itself
  CHECK(integers.form("auto", {false, true}) == NumberForm{DecimalMark::comma, false, {}});
  CHECK(integers.form("auto", {true, false}) == NumberForm{});
  CHECK(integers.form("comma") == NumberForm{DecimalMark::comma, true, {}});
  CHECK(percent.form("auto", {false, true}) == NumberForm{DecimalMark::comma, false, "%"});
  // Another column has 1.234,5. The column with 25000 would have 25.000.
  CHECK(integers.form("auto", {false, true, false, true}).isGrouped);
  CHECK_FALSE(large.form("auto", {false, true, false, true}).isGrouped);
  CHECK_FALSE(integers.form("auto", {true, false, false, true}).isGrouped);
}

TEST_CASE("columns of numbers show the mark of a file, and columns of texts do not") {
  const auto evidence = [](const std::vector<Names>& rows) {
    MarkScan scan;
    scan.addColumn(0);
    scan.addColumn(1);
    for (const Names& row : rows) {
      const std::vector<std::string_view> cells(row.begin(), row.end());
      scan.add(cells, 2);
    }
    return scan.evidence().only();
  };
  CHECK(evidence({{"1,5", "x"}, {"", "y"}}) == DecimalMark::comma);
  CHECK(evidence({{"1,5", "2.5"}, {"2,5", "y"}}) == DecimalMark::comma);
  CHECK(evidence({{"1,5", "2.5"}}) == std::nullopt);
  CHECK(evidence({{"1", "2"}}) == std::nullopt);
}

TEST_CASE("a column that does not decide, or contradicts itself, is refused with line and key") {
  CHECK_THAT(
      Column({"1", "1,234"}).error(),
      Catch::Contains("t.csv:3: '1,234' in the column 'x'") && Catch::Contains("1234 or 1.234"));
  CHECK_THAT(Column({"999", "1.234"}).error(), Catch::Contains("t.csv:3"));
  CHECK_THAT(Column({"1.234", "1,234"}).error(), Catch::Contains("may be"));
  CHECK_THAT(Column({"1.234"}).error("auto", {true, true}), Catch::Contains("may be"));
  CHECK_THAT(Column({"1.5", "2", "2,5"}).error(),
             Catch::Contains("t.csv:4: '2,5'") && Catch::Contains("'1.5' in line 2"));
  CHECK_THAT(Column({"1,5"}).error("point"), Catch::Contains("data.decimal: point"));
  CHECK_THAT(Column({"1", "2.5"}).error("comma"), Catch::Contains("t.csv:3: '2.5'"));
  CHECK_THAT(Column({"5 %", "0.5"}).error(), Catch::Contains("'5 %'") && Catch::Contains("'0.5'"));
  CHECK_THAT(Column({"5 €", "5 $"}).error(), Catch::Contains("'5 $'"));
  CHECK(Column({"1,234"}).form("comma").mark == DecimalMark::comma);
  CHECK(Column({"1,234"}).form("point").isGrouped);
  CHECK(Column({"5 €", "6", "EUR 7"}).form().unit == "EUR");
}

TEST_CASE("other files are read in the form of the training set") {
  const NumberForm point, comma{DecimalMark::comma, false, {}},
      grouped{DecimalMark::point, true, {}}, percent{DecimalMark::point, false, "%"};
  CHECK(readNumber("1.5", point) == 1.5);
  CHECK_FALSE(readNumber("1,5", point));
  CHECK_FALSE(readNumber("1,234", point));  // the training set has no thousands like this
  CHECK(readNumber("1,234.5", point) == 1234.5);
  CHECK(readNumber("1,234", grouped) == 1234);
  CHECK(readNumber("1,234", comma) == 1.234);
  CHECK(readNumber("1.234", point) == 1.234);
  CHECK_FALSE(readNumber("1.234", comma));
  CHECK(readNumber("5 %", percent) == 0.05);
  CHECK_FALSE(readNumber("5", percent));
  CHECK_FALSE(readNumber("5 %", point));
  CHECK_FALSE(readNumber("5 $", NumberForm{DecimalMark::point, false, "EUR"}));
  const NumberForm open{std::nullopt, false, {}};
  CHECK(readNumber("1.5", open) == 1.5);
  CHECK(readNumber("1,5", open) == 1.5);
  CHECK(readNumber("1.234,5", open) == 1234.5);
  CHECK(readNumber("25", open) == 25);
  CHECK_FALSE(readNumber("1.234", open));
  CHECK_FALSE(readNumber("1,234", open));
  for (const NumberForm& form : {point, comma, grouped, percent, open})
    CHECK(numberFormFrom(toJson(form)) == form);
  CHECK(toJson(point).is_null());  // as in models from before forms existed
}

TEST_CASE("an error says why a number of another file is not read") {
  const NumberForm comma{DecimalMark::comma, false, {}}, open{std::nullopt, false, {}};
  const UnreadNumber thousands = unreadNumber("1.234", comma);
  CHECK_THAT(thousands.fault, Catch::Contains("1.234 or 1234") && Catch::Contains("no thousands"));
  CHECK_THAT(thousands.hint, Catch::Contains("1234, set data.decimal: comma"));
  CHECK_THAT(unreadNumber("1.234", open).fault, Catch::Contains("no number of the training set"));
  CHECK_THAT(unreadNumber("1.25", comma).fault, Catch::Contains("a decimal comma"));
  CHECK_THAT(unreadNumber("1.234 $", comma).fault, Catch::Contains("is not a number with"));
  CHECK_THAT(unreadNumber("x", open).fault, Catch::Contains("is not a number with"));
}

TEST_CASE("data.decimal is the mark of a set that another set's form is used for") {
  NumberForm open{std::nullopt, false, "%"}, comma{DecimalMark::comma, false, {}}, other = comma;
  applyConfigured(open, DecimalMark::comma);
  CHECK(open == NumberForm{DecimalMark::comma, true, "%"});
  applyConfigured(comma, DecimalMark::comma);
  CHECK(readNumber("1.234", comma) == 1234);
  applyConfigured(other, std::nullopt);
  CHECK(other == NumberForm{DecimalMark::comma, false, {}});
  applyConfigured(other, DecimalMark::point);
  CHECK(other == NumberForm{DecimalMark::point, true, {}});
}

// ---- Labels ----

Labels labelsOf(const Names& texts) {
  Labels labels(std::nullopt);
  std::uint64_t line = 2;
  for (const std::string& text : texts) labels.add(text, "t.csv", line++);
  labels.finish("t.csv");
  return labels;
}

using Values = std::vector<std::int32_t>;

TEST_CASE("integers in any form are the same classes, named as in the data") {
  const Labels plain = labelsOf({"2", " 0", "2 "});
  CHECK(plain.values() == Values{2, 0, 2});
  CHECK(plain.classes().count == 3);
  CHECK(plain.classes().names.empty());
  const Labels floats = labelsOf({"1.0", "0.0", "1", "0.0"});
  CHECK(floats.values() == Values{1, 0, 1, 0});
  CHECK(floats.classes().names == Names{"0.0", "1.0"});
  CHECK(labelsOf({"1.000", "0.000"}).values() == Values{1, 0});
  CHECK(labelsOf({"1,0", "0,0"}).classes().names == Names{"0,0", "1,0"});
  const Labels gap = labelsOf({"0.0", "2.0"});
  CHECK(gap.values() == Values{0, 2});
  CHECK(gap.classes().names == Names{"0.0", "1", "2.0"});
  const Labels signedLabels = labelsOf({"1", "-1", "+1", std::string(kMinus) + "1"});
  CHECK(signedLabels.values() == Values{1, 0, 1, 0});
  CHECK(signedLabels.classes().names == Names{"-1", "1"});
  CHECK(labelsOf({"10", "9", "1"}).classes().names == Names{"1", "9", "10"});
  CHECK(labelsOf({"01", "1", "2"}).classes().names == Names{"01", "2"});
  CHECK(labelsOf({"b", "a", "1"}).classes().names == Names{"1", "a", "b"});
  CHECK(labelsOf({"(1)", "b"}).classes().names == Names{"(1)", "b"});
}

TEST_CASE("other sets have the classes of the training set, in any form of an integer") {
  Labels floats(labelsOf({"0.0", "1.0"}).classes());
  for (const char* text : {"1", "0.0", " 1.0"}) floats.add(text, "test.csv", 2);
  CHECK(floats.values() == Values{1, 0, 1});
  Labels numbers(ClassList{3, {}});
  numbers.add("2.0", "test.csv", 2);
  CHECK(numbers.values() == Values{2});
  CHECK(errorCode([&] { numbers.add("3", "test.csv", 2); }) == "bad-label");
  Labels names(ClassList{2, {"cat", "dog"}});
  CHECK_THAT(errorText([&] { names.add("dgo", "test.csv", 7); }),
             Catch::Contains("test.csv:7: the training set has no class 'dgo'"));
}

TEST_CASE("a missing label is an error in every spelling") {
  for (const std::string text : {"", " ", "NaN", "nan", "-nan", "NA", "na", "N/A", "n/a", "#N/A",
                                 "<NA>", "null", "NULL", "None", " none\t", "\xC2\xA0"}) {
    CAPTURE(text);
    CHECK(isMissing(text));
    Labels labels(std::nullopt);
    CHECK(errorCode([&] { labels.add(text, "t.csv", 3); }) == "bad-label");
    CHECK_THAT(errorText([&] { labels.add(text, "t.csv", 3); }), Catch::Contains("t.csv:3: "));
  }
  for (const std::string text : {"nano", "nope", "0", "no", "Nona"}) CHECK_FALSE(isMissing(text));
}

TEST_CASE("labels that are not classes are refused") {
  CHECK(errorCode([] { labelsOf({"0.5", "1"}); }) == "bad-label");
  CHECK_THAT(errorText([] { labelsOf({"1", "0.5"}); }), Catch::Contains("t.csv:3: the label 0.5"));
  CHECK(errorCode([] { labelsOf({"a", "a"}); }) == "too-few-classes");
  CHECK(errorCode([] { labelsOf({"1", "1.0"}); }) == "too-few-classes");
  CHECK(errorCode([] { labelsOf({"0", "1048576"}); }) == "too-many-classes");
  CHECK(errorCode([] { labelsOf({"a\x01", "b"}); }) == "data-damaged");
  CHECK(errorCode([] { labelsOf({"a\xFF", "b"}); }) == "data-damaged");
}

TEST_CASE("columns that number the rows are recognised, measurements are not") {
  const auto areIds = [](const std::string& name, const std::vector<std::string>& cells) {
    IdScan scan;
    for (const std::string& cell : cells) scan.add(parseNumber(cell));
    return scan.areIds(name);
  };
  // `count` numbers from `first` on, in steps of 1 or, every seventh, of `gap`, backwards.
  const auto numbers = [](int count, int first, int gap, const std::string& end = "") {
    Names cells;
    for (int n = 0; n < count; ++n) {
      cells.insert(cells.begin(), std::to_string(first) + end);
      first += n % 7 == 6 ? gap : 1;
    }
    return cells;
  };
  CHECK(areIds("Kunde", numbers(100, 100001, 2)));
  CHECK(areIds("x", numbers(20, 0, 1)));
  CHECK(areIds("x", numbers(5000, 1, 5)));
  CHECK(areIds("x", numbers(100, 1, 1, ".0")));
  // Gaps, repeated values, missing ones, and few.
  CHECK_FALSE(areIds("x", numbers(100, 100001, 50)));
  CHECK_FALSE(areIds("x", numbers(19, 0, 1)));
  CHECK_FALSE(areIds("x", numbers(100, 0, 0)));
  Names cells = numbers(3000, 0, 1);
  cells.push_back("2999");
  CHECK_FALSE(areIds("x", cells));
  cells.back() = "";
  CHECK_FALSE(areIds("x", cells));
  // Numbers that are no integers from 0 on.
  CHECK_FALSE(areIds("x", numbers(100, 1, 1, ".5")));
  CHECK_FALSE(areIds("x", numbers(100, 1, 1, " %")));
  CHECK_FALSE(areIds("x", numbers(100, -50, 1)));
  // The name decides if the values do not.
  for (const std::string name : {"id", "user_id", "userId", "Kundennr", "Nr.", "PATIENTENNUMMER"}) {
    CAPTURE(name);
    CHECK(areIds(name, {"71234", "5", "90210"}));
    CHECK_FALSE(areIds(name, {"5", "5", "6"}));
  }
  for (const std::string name : {"year", "Jahr", "baujahr year", "t", "age"}) {
    CAPTURE(name);
    CHECK_FALSE(areIds(name, numbers(100, 1900, 1)));
  }
  CHECK_FALSE(areIds("paid", {"71234", "5", "90210"}));
}

}  // namespace
}  // namespace cleave::test
