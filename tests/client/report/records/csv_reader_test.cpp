// Reading the CSV tables of a run while they grow.
#include "client/report/records/csv_reader.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>

#include "tests/support/files/folder.h"

namespace cleave::test {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

// Reads the column `x` of t.csv while the file grows.
struct Follower {
  explicit Follower(const Folder& folder) : reader(folder.path, "t", {"x", "text"}) {}

  std::vector<double> more() {
    std::vector<double> values;
    reader.read([&](const CsvRow& row) {
      const auto x = row.number(0);
      if (!row.isGarbled()) values.push_back(x.value_or(-1));
    });
    return values;
  }
  std::string problems(bool following = false) const {
    std::string all;
    for (const std::string& problem : reader.problems(following)) all += problem + "\n";
    return all;
  }

  CsvReader reader;
};

using Values = std::vector<double>;

TEST_CASE("each line of a growing table is read when it is complete") {
  const Folder folder;
  Follower follower(folder);
  CHECK(follower.more().empty());
  CHECK(follower.problems() == "t.csv is missing\n");
  folder.write("t.csv", "x,text\n1,a\n2,b\n3");
  CHECK(follower.more() == Values{1, 2});
  CHECK(follower.problems(true).empty());
  CHECK_THAT(follower.problems(false), Contains("t.csv ends with an incomplete line"));
  folder.append("t.csv", "4,c\n5,d\n");
  CHECK(follower.more() == Values{34, 5});
  CHECK(follower.problems().empty());
  CHECK(follower.reader.rows() == 4);
}

TEST_CASE("columns are found by name, in any order") {
  const Folder folder;
  folder.write("t.csv", "other,text,x\n\"a \"\"quoted\"\", cell\",plain,7\nb,,\n");
  Follower follower(folder);
  CHECK(follower.more() == Values{7, -1});
  CHECK(follower.problems().empty());

  folder.write("u.csv", "x\n1\n");
  CsvReader lacking(folder.path, "u", {"x", "text"});
  lacking.read([](const CsvRow& row) { CHECK(row.text(1).empty()); });
  CHECK(lacking.problems(false) == std::vector<std::string>{"u.csv lacks columns: text"});
}

TEST_CASE("a quoted cell is returned without its quotes") {
  const Folder folder;
  folder.write("t.csv", "x,text\r\n1,\"sort:q=6,s=2 \"\"x\"\"\"\r\n");
  CsvReader reader(folder.path, "t", {"text"});
  std::string text;
  reader.read([&](const CsvRow& row) { text = row.text(0); });
  CHECK(text == "sort:q=6,s=2 \"x\"");
}

TEST_CASE("rotated parts are read first, in order") {
  const Folder folder;
  folder.write("t.csv", "x,text\n12,\n");
  for (int part = 1; part <= 11; ++part) {
    folder.write("t." + std::to_string(part) + ".csv", "x,text\n" + std::to_string(part) + ",\n");
  }
  Follower follower(folder);
  CHECK(follower.more() == Values{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  CHECK(follower.problems().empty());
}

TEST_CASE("no row is lost if a table is rotated while it is being read") {
  const Folder folder;
  folder.write("t.csv", "x,text\n1,\n");
  Follower follower(folder);
  CHECK(follower.more() == Values{1});
  folder.append("t.csv", "2,\n");
  fs::rename(folder.path / "t.csv", folder.path / "t.1.csv");
  CHECK(follower.more() == Values{2});  // the new file does not exist yet
  folder.write("t.csv", "x,text\n3,\n");
  fs::rename(folder.path / "t.csv", folder.path / "t.2.csv");
  folder.write("t.csv", "x,text\n4,\n");
  CHECK(follower.more() == Values{3, 4});
  folder.append("t.csv", "5,\n");
  CHECK(follower.more() == Values{5});
  CHECK(follower.problems().empty());
}

TEST_CASE("old parts may be missing") {
  const Folder folder;
  folder.write("t.3.csv", "x,text\n3,\n");
  folder.write("t.csv", "x,text\n4,\n");
  Follower follower(folder);
  CHECK(follower.more() == Values{3, 4});
  CHECK_THAT(follower.problems(), Contains("the first parts of t.csv are missing"));
}

TEST_CASE("damaged rows are omitted and counted, and the others are kept") {
  const Folder folder;
  const std::string nothing(1, '\0');
  folder.write("t.csv", "x,text\n1,a\nonly one cell\n2,b\n3,c,more\nx5,d\n" + nothing +
                            ",e\n6,\"f\n" + std::string(200000, 'y') + "\n7,g\n");
  Follower follower(folder);
  CHECK(follower.more() == Values{1, 2, 6, 7});
  CHECK_THAT(follower.problems(),
             Contains("t.csv: 5 of 9 rows cannot be read and are skipped; the first "
                      "is line 3: it has 1 cells instead of 2"));
}

TEST_CASE("the damaged cell of the first damaged row is named") {
  const Folder folder;
  folder.write("t.csv", "x,text\n1,\nx5,a\n");
  Follower follower(folder);
  CHECK(follower.more() == Values{1});
  CHECK_THAT(follower.problems(), Contains("the first is line 3: its x is invalid"));
  CsvReader strict(folder.path, "t", {"x", "text", "time"});
  strict.read([](const CsvRow& row) { row.garble(1); });
  CHECK_THAT(strict.problems(false).back(), Contains("the first is line 2: its text is empty"));
  CsvReader other(folder.path, "t", {"x", "text", "time"});
  other.read([](const CsvRow& row) { row.time(2); });
  CHECK_THAT(other.problems(false).back(), Contains("the first is line 2: its time is missing"));
}

TEST_CASE("a file with another header is not read") {
  const Folder folder;
  folder.write("t.csv", "a,b\n1,2\n");
  Follower follower(folder);
  CHECK(follower.more().empty());
  CHECK_THAT(follower.problems(), Contains("not this table's header"));
  folder.write("e.csv", "");
  CsvReader empty(folder.path, "e", {"x"});
  empty.read([](const CsvRow&) { FAIL("no row"); });
  CHECK(empty.problems(false) == std::vector<std::string>{"e.csv is empty"});
}

TEST_CASE("cells are parsed as numbers or times, or reported as garbled") {
  const std::vector<std::string_view> cells = {
      "1.5e3", "", "nan", "12x", "2026-01-31T12:34:56.789Z", "2026-02-31T12:34:56.789Z"};
  const CsvRow row(cells);
  CHECK(row.number(0) == 1500);
  CHECK_FALSE(row.number(1));
  CHECK_FALSE(row.number(2));
  CHECK(row.time(4) == Approx(1769862896.789).epsilon(1e-12));
  CHECK_FALSE(row.isGarbled());
  CHECK_FALSE(row.number(3));
  CHECK(row.garbledColumn() == 3);
  const CsvRow noDay(cells);
  noDay.time(5);
  CHECK(noDay.garbledColumn() == 5);
}

}  // namespace
}  // namespace cleave::test
