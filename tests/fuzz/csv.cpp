// Fuzz target: a text that is written as a CSV cell. An RFC 4180 reader must find one cell with
// that text, preceded by ' if a spreadsheet would treat it as a formula.
#include <optional>
#include <string>

#include "common/files/record.h"
#include "tests/fuzz/seeds.h"

using namespace cleave;
using namespace cleave::fuzz;

namespace {

// The only cell of a line. Empty if the line has a different number of cells, or violates the RFC.
std::optional<std::string> readOnlyCell(const std::string& line) {
  if (!line.starts_with('"')) {
    if (line.find_first_of(",\"\r\n") != std::string::npos) return std::nullopt;
    return line;
  }
  std::string text;
  for (std::size_t j = 1; j < line.size(); ++j) {
    if (line[j] != '"') {
      text += line[j];
    } else if (j + 1 == line.size()) {
      return text;
    } else if (line[++j] == '"') {
      text += '"';
    } else {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::string cell = formatCell(text);
  const std::optional<std::string> read = readOnlyCell(cell);
  if (!read) find("not one cell: " + cell);
  if (*read != text && *read != "'" + text) find("another text: " + cell);
  if (read->empty() || std::string("=+-@\t\r").find(read->front()) == std::string::npos) return 0;
  const bool isNumber =
      (read->front() == '-' || read->front() == '+') &&
      read->find_first_not_of("0123456789.,+-% eEinfatyINFATY") == std::string::npos;
  if (!isNumber) find("a formula: " + cell);
  return 0;
}

std::vector<Seed> cleave::fuzz::seeds() {
  std::vector<Seed> all;
  for (const std::string text : {"plain", "a,b", "say \"x\"", "=1+2", "two\nlines\r\n", "@x", "-1",
                                 "+2.5e3", "-1+2", "\tx", ""}) {
    all.push_back({text, bytesOf(text)});
  }
  return all;
}
