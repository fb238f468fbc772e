// Tables as spreadsheets, pandas and other locales write them, and the data format `csv` on them.
#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>

#include "client/data/files/csv_file.h"
#include "client/data/formats/formats.h"
#include "client/run/temporary_folder.h"
#include "tests/support/error_code.h"

namespace cleave::test {
namespace {

using Names = std::vector<std::string>;
using Rows = std::vector<Names>;

class Tables {
 public:
  std::string write(const std::string& name, const std::string& content) const {
    std::string path = folder_.path() + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  // The header, then the rows.
  Rows read(const std::string& content, const std::string& name = "t.csv") const {
    const CsvFile file(write(name, content));
    Rows rows = {file.header()};
    file.forEachRow([&](std::uint64_t, std::span<const std::string_view> cells) {
      rows.emplace_back(cells.begin(), cells.end());
    });
    return rows;
  }
  std::unique_ptr<Dataset> open(const std::string& content) {
    keys.trainFile = write("train.csv", content);
    return findDataFormat("csv").open(keys, DataSplit::train);
  }
  std::string error(const std::string& content) {
    return errorText([&] { open(content); });
  }

  DataFormatKeys keys;

 private:
  TemporaryFolder folder_;
};

std::string inUtf16(const std::string& text, bool isBig) {
  std::string bytes = isBig ? "\xFE\xFF" : "\xFF\xFE";
  for (const char c : text) {
    if (isBig) bytes += '\0';
    bytes += c;
    if (!isBig) bytes += '\0';
  }
  return bytes;
}

TEST_CASE("tables are read in the forms of spreadsheets") {
  const Tables tables;
  const Rows expected = {{"a", "b"}, {"1", "x"}, {"2", "y"}};
  for (const std::string content :
       {"a;b\n1;x\n2;y\n", "a\tb\n1\tx\n2\ty\n", "a|b\n1|x\n2|y\n", "sep=;\na;b\n1;x\n2;y\n",
        "\xEF\xBB\xBFsep=,\r\na,b\r\n1,x\r\n2,y\r\n", "\"SEP=|\"\na|b\n1|x\n2|y\n",
        "a,b\r1,x\r2,y\r", "a,b\r\r\n1,x\r\r\n2,y\r\r\n", "a,b,\n1,x,\n2,y,\n", "a,b\n1,x,\n2,y,\n",
        "a,b,,\n1,x\n2,y,\n", "a,b\n1,x\n\n2,y\n,\n , \r\n\n,", "a, b\n1, x\n2, \"y\"\n",
        " a , b \n1, x\n2, y\n", "\"a\",\"b\"\r\n\"1\",\"x\"\r\n\"2\",\"y\"\r\n"}) {
    CAPTURE(content);
    CHECK(tables.read(content) == expected);
  }
  CHECK(tables.read("a,b\n1,x\n2,y\n", "t.tsv") == expected);
  CHECK(tables.read("a, b\n1, \"x, y\"\n") == Rows{{"a", "b"}, {"1", "x, y"}});
  CHECK(tables.read("a,b\n1, x\n") == Rows{{"a", "b"}, {"1", " x"}});  // no blank in the first line
  CHECK(tables.read("\"price, EUR\";b\n1,5;x\n") == Rows{{"price, EUR", "b"}, {"1,5", "x"}});
  CHECK(tables.read("size, cm;b\n1,5;x\n2,5;y\n")[1] == Names{"1,5", "x"});
  CHECK(tables.read("a;x,b\n1,2\n") == Rows{{"a;x", "b"}, {"1", "2"}});
  CHECK(tables.read("a,b\n1,x\n,\n2,\n,\n") == Rows{{"a", "b"}, {"1", "x"}, {"", ""}, {"2", ""}});
  CHECK(tables.read("a,b\n1,x\n\"\",\n,\n") == Rows{{"a", "b"}, {"1", "x"}, {"", ""}});
  CHECK(tables.read(",a\n0,x\n") == Rows{{"", "a"}, {"0", "x"}});
  CHECK_THAT(errorText([&] { tables.read("a,b,\n1,x,\n2,y,z\n"); }),
             Catch::Contains("t.csv:3: the cell 'z'"));
}

TEST_CASE("text in UTF-16 with a byte order mark is converted, and other encodings are named") {
  const Tables tables;
  const std::string text = "a\tb\r\n1\tx\r\n2\ty\r\n";
  for (const bool isBig : {false, true})
    CHECK(tables.read(inUtf16(text, isBig)) == Rows{{"a", "b"}, {"1", "x"}, {"2", "y"}});
  using namespace std::string_literals;
  CHECK(tables.read("\xFF\xFE"s + "a\0\n\0\xE4\0\n\0\x3D\xD8\x00\xDE\n\0\x3D\xD8"s) ==
        Rows{{"a"}, {"ä"}, {"😀"}, {"\xEF\xBF\xBD"}});
  const auto code = [&](const std::string& content) {
    return errorCode([&] { tables.read(content); });
  };
  CHECK(code("\xFF\xFE"s + "a\0\n"s) == "data-damaged");
  CHECK(code(inUtf16(text, false).substr(2)) == "data-damaged");
  CHECK(code("\xFF\xFE\0\0a\0\0\0"s) == "data-damaged");
  for (const char* other : {"PK\x03\x04", "\xD0\xCF\x11\xE0\xA1\xB1"}) {
    CHECK_THAT(errorText([&] { tables.read(other); }), Catch::Contains("is a spreadsheet or"));
  }
  CHECK_THAT(errorText([&] { tables.read("\x93NUMPY\x01"); }),
             Catch::Contains("is a .npy file, not text"));
}

TEST_CASE("text that is not UTF-8 is refused with its place and a command that converts it") {
  Tables tables;
  const std::string table = "x;label\r\n1,50 \x80;a\r\n\"2,5\n0\";b\r\n3,\x80\x80;b\r\n";
  const auto hint = [&](const std::string& content, const std::string& name = "t.csv") {
    return errorHint([&] { tables.read(content, name); });
  };
  CHECK_THAT(
      errorText([&] { tables.read(table); }),
      Catch::EndsWith("t.csv:2: byte 6 of the line, 0x80, is not UTF-8; the file has 2 lines "
                      "with such bytes"));
  CHECK_THAT(hint(table), Catch::Contains("iconv -f WINDOWS-1252 -t UTF-8 /") &&
                              Catch::Contains("/t.csv > NEW.csv"));
  CHECK_THAT(hint("a\tb\n1\t\xE4\n", "it's.tsv"), Catch::Contains("/it'\\''s.tsv' > NEW.tsv"));
  // Line ends of CR, a header, the end of the file.
  CHECK_THAT(errorText([&] { tables.read("a,b\r1,2\r\xFC,3\r"); }), Catch::Contains(":3: byte 1 "));
  CHECK_THAT(errorText([&] { tables.read("gr\xF6\xDF,label\n1,a\n"); }),
             Catch::Contains(":1: byte 3 of the line, 0xF6"));
  CHECK_THAT(errorText([&] { tables.read("a,b\n1,\xC3"); }), Catch::Contains(":2: byte 3 "));
  // Not the usual encoding; and UTF-8 with a damaged byte.
  CHECK_THAT(hint("a,b\n1,\x81\n"), Catch::Contains("iconv -f ENCODING"));
  CHECK_THAT(hint("a,b\n\u00e4,\u00f6\n1,\xE4\n"), Catch::Contains("iconv -c -f UTF-8 -t UTF-8"));
  for (const std::string format : {"csv", "list"}) {
    CAPTURE(format);
    tables.keys.trainFile = tables.write("train.csv", "path,label\n\xE4.png,a\n");
    CHECK_THAT(errorText([&] { findDataFormat(format).open(tables.keys, DataSplit::train); }),
               Catch::Contains("train.csv:2: byte 1 of the line, 0xE4"));
  }
}

TEST_CASE("prices with a sign of the currency behind them are numbers") {
  Tables tables;
  const auto data = tables.open(
      "price;fee;label\n1.234,50 \u20ac;1\u202f234,50\u00a0\u20ac;a\n2.234,50\u20ac;2 234,50 "
      "EUR;b\n");
  const nlohmann::json columns = data->learned().at("columns");
  CHECK(columns[0].at("mean") == 1734.5);
  CHECK(columns[1].at("mean") == 1734.5);
  CHECK(columns[0].at("form").at("unit") == "EUR");
}

TEST_CASE("numbers with a decimal comma are numeric, in other sets too") {
  Tables tables;
  const auto data = tables.open("x;y;label\n1,5;1.000;a\n2,5;3.000;b\n");
  CHECK(toString(data->arrays()[0]) == "f32[2]");
  const nlohmann::json columns = data->learned().at("columns");
  CHECK(columns[0].at("mean") == 2.0);
  CHECK(columns[1].at("mean") == 2000.0);  // as the column x has decimal commas
  tables.keys.learned = data->learned();
  const auto test = [&](const std::string& row) {
    tables.keys.testFile = tables.write("test.csv", "x;y;label\n" + row + "\n");
    return findDataFormat("csv").open(tables.keys, DataSplit::test);
  };
  std::vector<float> values(2);
  std::int64_t label = 0;
  std::vector<std::span<std::byte>> memory = {std::as_writable_bytes(std::span(values)),
                                              std::as_writable_bytes(std::span(&label, 1))};
  test("3,5;4.000;b")->write(0, std::nullopt, memory);
  CHECK(values == std::vector<float>{3, 2});
  CHECK_THAT(errorText([&] { test("1.25;4.000;b"); }),
             Catch::Contains("test.csv:2: '1.25' in the column 'x'") &&
                 Catch::Contains("a decimal comma"));
}

// The form of integers in the training set is that of the table's other columns.
TEST_CASE("integers of the training set are other numbers elsewhere, in the form of the table") {
  Tables tables;
  // The value of the first column in the row of an input. Its mean and std are irrelevant.
  // `decimal`: data.decimal, set for the input only, as with `predict --set`.
  const auto read = [&](const std::string& training, const std::string& row,
                        const std::string& decimal = "auto") {
    tables.keys.decimal = "auto";
    const auto data = tables.open(training);
    tables.keys.decimal = decimal;
    nlohmann::json learned = data->learned();
    for (nlohmann::json& column : learned.at("columns")) {
      if (column.contains("mean")) column["mean"] = 0.0, column["std"] = 1.0;
    }
    tables.keys.learned = learned;
    const std::string header = training.substr(0, training.find('\n'));
    tables.keys.inputs = {tables.write("input.csv", header + "\n" + row + "\n")};
    const auto input = findDataFormat("csv").open(tables.keys, DataSplit::input);
    std::vector<float> values(input->arrays()[0].shape[0]);
    std::int64_t label = 0;
    const std::vector<std::span<std::byte>> memory = {std::as_writable_bytes(std::span(values)),
                                                      std::as_writable_bytes(std::span(&label, 1))};
    input->write(0, std::nullopt, memory);
    return values[0];
  };
  const auto error = [&](const std::string& training, const std::string& row,
                         const std::string& decimal = "auto") {
    return errorText([&] { read(training, row, decimal); });
  };
  const std::string commas = "n;price;label\n5;1,5;a\n250;2,5;b\n";
  CHECK(read(commas, "7;3,5;a") == 7);
  CHECK(read(commas, "7,25;3,5;a") == 7.25F);
  CHECK_THAT(error(commas, "1.234;3,5;a"),
             Catch::Contains("input.csv:2: '1.234' in the column 'n' may be 1.234 or 1234"));
  CHECK_THAT(error(commas, "7.5;3,5;a"), Catch::Contains("a decimal comma"));
  // Another column has thousands.
  const std::string grouped = "n;price;label\n5;1.000,5;a\n250;2,5;b\n";
  CHECK(read(grouped, "1.234;3,5;a") == 1234);
  CHECK(read("n,price,label\n5,\"1,000.5\",a\n250,2.5,b\n", "\"1,234\",3.5,a") == 1234);
  // Percentages and currencies.
  const std::string percent = "n;price;label\n5 %;1,5;a\n70 %;2,5;b\n";
  CHECK(read(percent, "72,5 %;1,5;a") == 0.725F);
  CHECK_THAT(error(percent, "1.072 %;1,5;a"), Catch::Contains("1.072 %"));
  CHECK(read("n;price;label\n5 €;1,5;a\n70 €;2,5;b\n", "72,50 €;1,5;a") == 72.5F);
  // Only a column that the model does not use has a mark.
  tables.keys.numericColumns = {"n"};
  CHECK(read(commas, "7,25;3,5;a") == 7.25F);
  CHECK_THAT(error(commas, "7.5;3,5;a"), Catch::Contains("a decimal comma"));
  tables.keys.numericColumns.clear();
  // Only the target has one.
  tables.keys.targetType = "number";
  CHECK_THAT(error("n;label\n5;1,5\n250;2,5\n", "7.5;0"), Catch::Contains("a decimal comma"));
  tables.keys.targetType = "class";
  // No column has one.
  const std::string integers = "n,m,label\n5,1,a\n250,2,b\n";
  CHECK(read(integers, "7.5,1,a") == 7.5F);
  CHECK(read(integers, "\"7,5\",1,a") == 7.5F);
  CHECK_THAT(error(integers, "1.234,1,a"), Catch::Contains("may be 1.234 or 1234") &&
                                               Catch::Contains("no number of the training"));
  CHECK(read(integers, "1.234,1,a", "point") == 1.234F);
  // The input has another decimal mark than the training set.
  const std::string points = "n,m,label\n5.5,1,a\n25000,2,b\n";
  CHECK_THAT(error(points, "\"7,5\",1,a"), Catch::Contains("a decimal point"));
  CHECK(read(points, "\"7,5\",1,a", "comma") == 7.5F);
  CHECK(read(points, "1.234,1,a", "comma") == 1234);
  CHECK_THAT(error(points, "7.5,1,a", "comma"), Catch::Contains("a decimal comma"));
  CHECK(read(commas, "7.5;3.5;a", "point") == 7.5F);
  CHECK_THAT(error(commas, "7,5;3.5;a", "point"), Catch::Contains("a decimal point"));
}

TEST_CASE("a model from before the form of integers was recorded has the same columns") {
  Tables tables;
  const nlohmann::json now = tables.open("n;price;label\n5;1,5;a\n250;2,5;b\n")->learned();
  nlohmann::json before = now;
  before.at("columns")[0].erase("form");
  CHECK(isSameLearned(before, now));
  before.at("columns")[0]["mean"] = 1;
  CHECK_FALSE(isSameLearned(before, now));
  before = now;
  before.at("columns")[1]["form"]["unit"] = "EUR";
  CHECK_FALSE(isSameLearned(before, now));
  CHECK(isSameLearned(nullptr, nullptr));
}

TEST_CASE("each row of an input is a sample, and empty rows at the end of other files are none") {
  Tables tables;
  tables.keys.missing = "mean";
  const auto data = tables.open("x,y,label\n1,2,a\n,,b\n3,4,b\n,,\n,,\n");
  CHECK(data->size() == 3);
  tables.keys.learned = data->learned();
  const auto input = [&](const std::string& content) {
    tables.keys.inputs = {tables.write("input.csv", content)};
    return findDataFormat("csv").open(tables.keys, DataSplit::input);
  };
  CHECK(input("x,y\n1,2\n,\n3,4\n")->size() == 3);
  CHECK(input("x,y\n1,2\n3,4\n,\n")->size() == 3);
  CHECK_THAT(tables.error("x,y,label\n1,2,a\n,,\n3,4,b\n"), Catch::Contains("train.csv:3: "));
  tables.keys.missing = "error";
  CHECK_THAT(errorText([&] { input("x,y\n1,2\n3,4\n,\n"); }),
             Catch::Contains("input.csv:4: the column 'x' has no value"));
}

TEST_CASE("columns that do not decide their form are refused, unless data.decimal does") {
  Tables tables;
  const std::string content = "x;label\n1,234;a\n5,678;b\n";
  CHECK_THAT(tables.error(content), Catch::Contains("train.csv:2: '1,234' in the column 'x'"));
  tables.keys.decimal = "comma";
  CHECK(tables.open(content)->learned()["columns"][0].at("mean") == Approx(3.456));
  tables.keys.decimal = "point";
  CHECK(tables.open(content)->learned()["columns"][0].at("mean") == Approx(3456));
  tables.keys.decimal = "auto";
  CHECK_THAT(tables.error("x;label\n1,5;a\n2.5;b\n"), Catch::Contains("train.csv:3: '2.5'"));
  CHECK(tables.open("x,label\n\"1,234.5\",a\n\"1,234\",b\n")->learned()["columns"][0]["mean"] ==
        Approx(1234.25));
}

TEST_CASE("a target is read in its own form") {
  Tables tables;
  tables.keys.targetType = "number";
  const auto data = tables.open("x;label\n1;0,5\n2;1,5\n");
  float target = 0;
  std::vector<float> value(1);
  std::vector<std::span<std::byte>> memory = {std::as_writable_bytes(std::span(value)),
                                              std::as_writable_bytes(std::span(&target, 1))};
  data->write(1, std::nullopt, memory);
  CHECK(target == 1.5F);
  CHECK(data->learned()["target"]["form"]["decimal"] == "comma");
  CHECK_THAT(tables.error("x;label\n1;NA\n2;1,5\n"), Catch::Contains("train.csv:2: the target"));
}

TEST_CASE("a column of many different numbers is never categorical") {
  Tables tables;
  std::string content = "x,label\n";
  for (int n = 0; n < 40; ++n)
    content += (n % 3 == 0 ? std::to_string(n) : "?") + std::string(n % 2 == 0 ? ",a\n" : ",b\n");
  CHECK(tables.open(content)->arrays()[0].shape[0] > 1);  // 14 numbers may be codes
  for (int n = 40; n < 100; ++n) content += (n % 3 == 0 ? std::to_string(n) : "?") + ",a\n";
  CHECK_THAT(tables.error(content), Catch::Contains("train.csv:3: '?' in the column 'x'"));
}

TEST_CASE("a column of many values with units, or of dates, is refused unless it is listed") {
  Tables tables;
  const auto content = [](int rows, const std::string& before, const std::string& after) {
    std::string text = "x,y,label\n";
    for (int n = 0; n < rows; ++n)
      text += before + std::to_string(n % 30 + 10) + after + "," + std::to_string(n) +
              (n % 2 == 0 ? ",a\n" : ",b\n");
    return text;
  };
  for (const auto& [before, after] : std::vector<std::pair<std::string, std::string>>{
           {"", " kg"}, {"2024-05-", ""}, {"-", "h"}, {"< ", "x"}, {"", "/7"}}) {
    CHECK_THAT(tables.error(content(300, before, after)),
               Catch::Contains("train.csv:2: the column 'x' has 30 different values that begin") &&
                   Catch::Contains("such as '" + before + "10" + after + "'"));
  }
  CHECK(tables.open(content(20, "", " kg"))->arrays()[0].shape[0] == 21);  // few categories
  CHECK(tables.open(content(300, "A", ""))->arrays()[0].shape[0] == 31);   // names
  tables.keys.categoricalColumns = {"x"};
  tables.keys.numericColumns = {"y"};
  CHECK(tables.open(content(300, "", " kg"))->arrays()[0].shape[0] == 31);
}

TEST_CASE("ignored columns are no inputs, and must exist") {
  Tables tables;
  tables.keys.ignoredColumns = {"id"};
  const std::string content = "id,x,label\nk1,1,a\nk2,2,b\n";
  const auto data = tables.open(content);
  CHECK(toString(data->arrays()[0]) == "f32[1]");
  tables.keys.learned = data->learned();
  tables.keys.inputs = {tables.write("input.csv", "x\n1\n")};  // without the ignored column
  CHECK(findDataFormat("csv").open(tables.keys, DataSplit::input)->size() == 1);
  tables.keys.ignoredColumns = {"ID"};
  CHECK_THAT(tables.error(content), Catch::Contains("no column 'ID'"));
  tables.keys.ignoredColumns = {"label"};
  CHECK_THAT(tables.error(content), Catch::Contains("the target's column 'label'"));
  tables.keys.ignoredColumns = {"id"};
  tables.keys.numericColumns = {"x"};
  CHECK_THAT(tables.error(content), Catch::Contains("data.ignore has no effect"));
}

TEST_CASE("a single column needs no quotes, and row names of R are explained") {
  const Tables tables;
  CHECK(tables.read("x\n1,5\n2;5|3\n") == Rows{{"x"}, {"1,5"}, {"2;5|3"}});
  CHECK(tables.read("x\r\n\"1,\"\"5\"\r\n2,5\r\n") == Rows{{"x"}, {"1,\"5"}, {"2,5"}});
  CHECK(tables.read("x\n1,5\n", "t.tsv") == Rows{{"x"}, {"1,5"}});
  const auto hint = [&](const std::string& content) {
    return errorHint([&] { tables.read(content); });
  };
  CHECK_THAT(hint("\"x\",\"y\"\n\"1\",5,6\n\"b\",7,8\n"), Catch::Contains("row.names = FALSE"));
  CHECK_THAT(hint("x;y\n1;5;6\n2;7;8\n"), Catch::Contains("row.names = FALSE"));
  CHECK_THAT(hint("x,y\n1,5,6\n2,7,8,\n3,1\n"), !Catch::Contains("row.names"));
  CHECK_THAT(hint("x,y\n3,5,6\n4,5,8\n"), Catch::Contains("a decimal comma"));
}

TEST_CASE("pandas' index is not an input") {
  Tables tables;
  for (const std::string name : {"", "Unnamed: 0"}) {
    for (const std::string rows : {"0,1,a\n1,2,b\n2,4,a\n", "7,1,a\n3,2,b\n11,4,a\n"}) {
      const auto data = tables.open(name + ",x,label\n" + rows);
      CHECK(toString(data->arrays()[0]) == "f32[1]");
    }
  }
  CHECK_THAT(tables.error(",x,label\n0.5,1,a\n0.7,2,b\n"),
             Catch::Contains("train.csv:1: column 1 has no name"));
  CHECK_THAT(tables.error("x,,label\n1,p,a\n2,q,b\n"), Catch::Contains("column 2 has no name"));
  CHECK(tables.open("x,,label\n1,,a\n2,,b\n")->arrays()[0].shape[0] == 1);
  CHECK(tables.open("Unnamed: 0,x,label\n5,1,a\n5,2,b\n")->arrays()[0].shape[0] == 2);
  tables.keys.numericColumns = {"x"};
  CHECK(tables.open(",x,label\nq,1,a\nr,2,b\n")->arrays()[0].shape[0] == 1);
}

TEST_CASE("blanks around categories and names do not matter") {
  Tables tables;
  const auto data = tables.open("x,c,label\n1,p ,a\n2, p,b\n3,q,a\n");
  CHECK(data->learned()["columns"][1]["categories"] == nlohmann::json{"p", "q"});
}

}  // namespace
}  // namespace cleave::test
