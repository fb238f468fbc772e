// Compares the tables of docs/metrics.md with the actual columns of a run's files.
#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/link/probe/probe_result.h"
#include "common/record/run_files.h"
#include "tools/link/stats.h"

namespace cleave {
namespace {

std::string section(const std::string& name) {
  std::ifstream file(CLEAVE_SOURCE_DIR "/docs/metrics.md");
  REQUIRE(file);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const std::string begin = "<!-- begin:" + name + " -->\n";
  const auto start = text.find(begin);
  const auto end = text.find("<!-- end:" + name + " -->");
  REQUIRE(start != std::string::npos);
  REQUIRE(end != std::string::npos);
  REQUIRE(start < end);
  return text.substr(start + begin.size(), end - start - begin.size());
}

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(' ');
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
}

struct DocumentedColumn {
  std::string name;
  std::string unit;
  std::string definition;
  std::string writtenBy;
};

// The rows of a table except its header.
std::vector<DocumentedColumn> table(const std::string& name) {
  std::vector<DocumentedColumn> columns;
  std::istringstream lines(section(name));
  std::size_t row = 0;
  for (std::string line; std::getline(lines, line); ++row) {
    if (row < 2) continue;
    INFO(line);
    std::vector<std::string> cells;
    std::istringstream text(line.substr(1));
    for (std::string cell; std::getline(text, cell, '|');) cells.push_back(trimmed(cell));
    REQUIRE(cells.size() == 4);
    const std::string& column = cells[0];
    REQUIRE(column.size() > 2);
    REQUIRE(column.front() == '`');
    REQUIRE(column.back() == '`');
    columns.push_back({column.substr(1, column.size() - 2), cells[1], cells[2], cells[3]});
  }
  return columns;
}

std::vector<std::string> names(const std::vector<DocumentedColumn>& columns) {
  std::vector<std::string> result;
  for (const DocumentedColumn& column : columns) result.push_back(column.name);
  return result;
}

// The columns except the last ones, which are the client's metrics.
std::vector<std::string> withoutLast(std::vector<std::string> columns, std::size_t count) {
  REQUIRE(columns.size() > count);
  columns.resize(columns.size() - count);
  return columns;
}

const std::vector<std::string> kMetrics = {"loss", "top1", "top5"};

TEST_CASE("transfers.csv has the documented columns in the documented order") {
  CHECK(names(table("transfers")) == RunFiles::transferColumns());
}

TEST_CASE("steps.csv has the documented columns in the documented order") {
  const std::vector<std::string> documented = names(table("steps"));
  CHECK(documented == RunFiles::stepColumns(kMetrics));
  CHECK(withoutLast(documented, kMetrics.size()) == RunFiles::stepColumns({}));
}

TEST_CASE("epochs.csv has the documented columns in the documented order") {
  const std::vector<std::string> documented = names(table("epochs"));
  CHECK(documented == RunFiles::epochColumns(kMetrics));
  CHECK(withoutLast(documented, 2 * kMetrics.size()) == RunFiles::epochColumns({}));
}

TEST_CASE("probe.csv has the documented columns in the documented order") {
  CHECK(names(table("probe")) == probeColumns());
}

TEST_CASE("cleave-link's statistics have the documented columns in the documented order") {
  CHECK(names(table("link")) == link::statsColumns());
}

TEST_CASE("every column is defined, and metrics are documented as columns of the client only") {
  const auto isMetric = [](const std::string& name) {
    for (const std::string& metric : kMetrics) {
      if (name == metric || name == "train_" + metric || name == "eval_" + metric) return true;
    }
    return false;
  };
  for (const char* file : {"transfers", "steps", "epochs", "probe", "link"}) {
    for (const DocumentedColumn& column : table(file)) {
      INFO(file << ", " << column.name);
      CHECK_FALSE(column.definition.empty());
      CHECK_FALSE(column.writtenBy.empty());
      if (isMetric(column.name)) CHECK(column.writtenBy.rfind("client", 0) == 0);
    }
  }
}

// Only columns whose name ends with the suffix of a unit are checked.
TEST_CASE("a column has the unit that its name implies") {
  const std::pair<std::string, std::string> units[] = {
      {"_seconds", "s"},      {"_bytes", "bytes"},      {"_db", "dB"},    {"_rate", "bytes/s"},
      {"rate_up", "bytes/s"}, {"rate_down", "bytes/s"}, {"loss", "nats"}, {"top1", "0 … 1"},
      {"top5", "0 … 1"},      {"_mbit_s", "Mbit/s"},    {"time", "UTC"}};
  const std::vector<std::string> without = {
      "learning_rate"};  // ends like a unit's suffix, but has no unit
  std::size_t checked = 0;
  for (const char* file : {"transfers", "steps", "epochs", "probe", "link"}) {
    for (const DocumentedColumn& column : table(file)) {
      INFO(file << ", " << column.name);
      if (std::count(without.begin(), without.end(), column.name) > 0) continue;
      for (const auto& [end, unit] : units) {
        if (!column.name.ends_with(end)) continue;
        CHECK(column.unit == unit);
        ++checked;
      }
    }
  }
  CHECK(checked > 40);
}

}  // namespace
}  // namespace cleave
