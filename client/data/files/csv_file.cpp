#include "client/data/files/csv_file.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <deque>
#include <utility>

#include "client/data/files/cells.h"
#include "client/data/files/encoding.h"
#include "client/data/files/unpack.h"
#include "common/core/error.h"
#include "common/core/printable.h"
#include "common/core/units.h"

namespace cleave {
namespace {

constexpr std::size_t kMaxColumns = 1 << 16;

bool isBlank(std::string_view cell) { return trimmed(cell).empty(); }

std::string_view withoutGzip(std::string_view path) {
  if (path.ends_with(".gz")) path.remove_suffix(3);
  return path;
}

}  // namespace

bool isTablePath(const std::string& path) {
  const std::string_view name = withoutGzip(path);
  return name.ends_with(".csv") || name.ends_with(".tsv");
}

std::string lineOf(const std::string& path, std::uint64_t line) {
  return path + ":" + std::to_string(line);
}

// Reads row by row. A cell is a view of the file, or of `unquoted_` if it has doubled quotes.
class CsvFile::Parser {
 public:
  explicit Parser(const CsvFile& file) : Parser(file, file.delimiter_) {}
  Parser(const CsvFile& file, char delimiter)
      : file_(file),
        delimiter_(delimiter),
        text_(reinterpret_cast<const char*>(file.bytes_.data()), file.bytes_.size()),
        at_(file.start_),
        line_(file.startLine_) {}

  // Reads the next row. Returns false at the end.
  bool next() {
    cells_.clear();
    unquoted_.clear();
    while (at_ < text_.size() && takeLineEnd()) continue;  // blank lines
    if (at_ == text_.size()) return false;
    rowLine_ = line_;
    rowBegin_ = at_;
    for (;;) {
      takeCell();
      if (at_ == text_.size() || takeLineEnd()) return true;
      ++at_;  // the delimiter
    }
  }

  std::uint64_t line() const { return rowLine_; }
  std::span<const std::string_view> cells() const { return cells_; }
  std::size_t rowBegin() const { return rowBegin_; }

 private:
  [[noreturn]] void fail(std::uint64_t line, const std::string& fault,
                         const std::string& hint) const {
    throw DataError("data-damaged", lineOf(file_.path_, line) + ": " + fault, hint);
  }

  bool takeLineEnd() {
    std::size_t end = at_;
    while (end < text_.size() && text_[end] == '\r') ++end;
    if (end == text_.size() || text_[end] != '\n') return false;
    at_ = end + 1;
    ++line_;
    return true;
  }

  // Takes the text up to a delimiter or the end of the line or file.
  void takeCell() {
    if (cells_.size() == kMaxColumns)
      fail(rowLine_, "the row has more than 65536 cells", "check the file's delimiter");
    while (file_.skipsBlanks_ && at_ < text_.size() && text_[at_] == ' ') ++at_;
    if (at_ < text_.size() && text_[at_] == '"') return takeQuoted();
    const std::size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != delimiter_ && text_[at_] != '\n') ++at_;
    std::size_t end = at_;
    if (end == text_.size() || text_[end] == '\n') {
      while (end > begin && text_[end - 1] == '\r') --end;  // some programs write CR CR LF
    }
    cells_.push_back(text_.substr(begin, end - begin));
  }

  void takeQuoted() {
    const std::uint64_t openedAt = line_;
    const std::size_t begin = ++at_;
    bool hasDoubled = false;
    for (;;) {
      const std::size_t quote = text_.find('"', at_);
      if (quote == std::string_view::npos)
        fail(openedAt, "a quoted cell is not closed", "add the closing quote");
      line_ += static_cast<std::uint64_t>(
          std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                     text_.begin() + static_cast<std::ptrdiff_t>(quote), '\n'));
      at_ = quote + 1;
      if (at_ == text_.size() || text_[at_] != '"') break;
      ++at_;
      hasDoubled = true;
    }
    const std::string_view cell = text_.substr(begin, at_ - 1 - begin);
    cells_.push_back(hasDoubled ? unquoted(cell) : cell);
    while (file_.skipsBlanks_ && at_ < text_.size() && text_[at_] == ' ') ++at_;
    if (at_ < text_.size() && text_[at_] == delimiter_) return;
    while (at_ < text_.size() && text_[at_] == '\r') ++at_;
    if (at_ == text_.size() || text_[at_] == '\n') return;
    fail(line_, "there is text after a quoted cell",
         "quote the whole cell, with each quote in it doubled; pandas.DataFrame.to_csv does that");
  }

  std::string_view unquoted(std::string_view cell) {
    std::string& text = unquoted_.emplace_back();
    for (std::size_t n = 0; n < cell.size(); ++n) {
      text += cell[n];
      if (cell[n] == '"') ++n;
    }
    return text;
  }

  const CsvFile& file_;
  const char delimiter_;
  std::string_view text_;
  std::size_t at_, rowBegin_ = 0;
  std::uint64_t line_, rowLine_ = 1;
  std::vector<std::string_view> cells_;
  std::deque<std::string> unquoted_;
};

// Excel reads and writes a first line such as sep=; which names the delimiter.
void CsvFile::takeSeparatorLine() {
  const auto end = std::find(bytes_.begin(), bytes_.end(), '\n');
  std::string line(bytes_.begin(), end);
  std::erase_if(line, [](char c) { return c == '"' || c == '\r'; });
  constexpr std::size_t kBefore = 4;  // sep=
  if (end == bytes_.end() || line.size() <= kBefore) return;
  for (std::size_t n = 0; n < kBefore; ++n) {
    if (std::tolower(static_cast<unsigned char>(line[n])) != "sep="[n]) return;
  }
  const char delimiter = line[kBefore];
  if (line.find_first_not_of(delimiter, kBefore) != std::string::npos) return;
  delimiter_ = delimiter;
  start_ = static_cast<std::size_t>(end - bytes_.begin()) + 1;
  startLine_ = 2;
}

// Whether all of the first rows have as many cells as the header with this delimiter, at least 2.
bool CsvFile::isConsistent(char delimiter) const {
  constexpr int kRows = 100;
  try {
    Parser parser(*this, delimiter);
    parser.next();
    const std::size_t columns = parser.cells().size();
    for (int n = 0; n < kRows && parser.next(); ++n) {
      if (parser.cells().size() != columns) return false;
    }
    return columns > 1;
  } catch (const UsageError&) {
    return false;
  }
}

// Many spreadsheets write .csv files with semicolons or tabs.
char CsvFile::findDelimiter() const {
  const char usual = withoutGzip(path_).ends_with(".tsv") ? '\t' : ',';
  std::vector<char> found;
  bool isQuoted = false;
  for (std::size_t at = start_; at < bytes_.size() && (isQuoted || bytes_[at] != '\n'); ++at) {
    const char c = static_cast<char>(bytes_[at]);
    if (c == '"') isQuoted = !isQuoted;
    const bool isDelimiter = c == ',' || c == '\t' || c == ';' || c == '|';
    if (isDelimiter && !isQuoted && std::find(found.begin(), found.end(), c) == found.end())
      found.push_back(c);
  }
  const auto has = [&](char c) { return std::find(found.begin(), found.end(), c) != found.end(); };
  if (usual == '\t' && (found.empty() || has('\t'))) return usual;
  if (found.empty()) return '\n';  // one column, in which 1,5 is a number
  if (found.size() == 1) return found.front();
  // A comma may also be part of a name or a decimal comma, so it is tried last.
  for (const char each : {'\t', ';', '|', ','}) {
    if (has(each) && isConsistent(each)) return each;
  }
  for (const char each : {',', '\t', ';'}) {
    if (has(each)) return each;
  }
  return usual;
}

// Whether all cells of the first line but the first begin with a blank: a, b, c
bool CsvFile::hasBlanksAfterDelimiters() const {
  if (delimiter_ == ' ') return false;
  Parser parser(*this);
  if (!parser.next() || parser.cells().size() < 2) return false;
  return std::all_of(parser.cells().begin() + 1, parser.cells().end(),
                     [](std::string_view name) { return name.starts_with(' '); });
}

CsvFile::CsvFile(const std::string& path, DamageReport report)
    : path_(path), report_(std::move(report)), bytes_(readText(path)) {
  if (std::find(bytes_.begin(), bytes_.end(), '\n') == bytes_.end())
    std::replace(bytes_.begin(), bytes_.end(), std::uint8_t{'\r'}, std::uint8_t{'\n'});
  takeSeparatorLine();
  if (delimiter_ == 0) delimiter_ = findDelimiter();
  skipsBlanks_ = hasBlanksAfterDelimiters();
  readHeader();
}

void CsvFile::readHeader() {
  Parser parser(*this);
  if (!parser.next()) {
    throw DataError("data-empty", path_ + " has no header and no rows",
                    "write the names of the columns to its first line");
  }
  for (const std::string_view name : parser.cells()) header_.emplace_back(trimmed(name));
  for (; header_.size() > 1 && header_.back().empty(); ++unnamedEnd_) header_.pop_back();
  for (std::size_t n = 0; n < header_.size(); ++n) {
    const auto same = header_.begin() + static_cast<std::ptrdiff_t>(n);
    if (header_[n].empty() || std::find(header_.begin(), same, header_[n]) == same) continue;
    throwDamaged(path_, "has two columns named '" + printable(header_[n], 100) + "'",
                 "give each column its own name in the first line");
  }
}

std::optional<std::size_t> CsvFile::find(std::string_view column) const {
  const auto found = std::find(header_.begin(), header_.end(), trimmed(column));
  if (found == header_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - header_.begin());
}

std::size_t CsvFile::column(std::string_view name, const std::string& hint) const {
  if (const auto found = find(name)) return *found;
  constexpr std::size_t kShown = 20;
  std::string columns;
  for (std::size_t n = 0; n < std::min(kShown, header_.size()); ++n)
    columns += (n == 0 ? "" : ", ") + printable(header_[n], 60);
  if (header_.size() > kShown) columns += ", …";
  throw UsageError(
      "no-column",
      path_ + " has no column '" + printable(name, 100) + "'; its columns are " + columns, hint);
}

// The position after the last character that is no delimiter, blank or line end.
std::size_t CsvFile::endOfContent() const {
  std::string_view text(reinterpret_cast<const char*>(bytes_.data()), bytes_.size());
  for (;;) {
    text = trimmedEnd(text);
    if (!text.ends_with(delimiter_) && !text.ends_with('\n')) return text.size();
    text.remove_suffix(1);
  }
}

void CsvFile::forEachRow(
    const std::function<void(std::uint64_t, std::span<const std::string_view>)>& take,
    EmptyEnd emptyEnd) const {
  const std::size_t end = emptyEnd == EmptyEnd::skip ? endOfContent() : bytes_.size();
  Parser parser(*this);
  parser.next();  // the header
  while (parser.next()) {
    if (parser.rowBegin() >= end && parser.cells().size() > 1) return;
    if (damagedLines_.contains(parser.line())) continue;
    std::span<const std::string_view> cells = parser.cells();
    while (cells.size() > header_.size() && isBlank(cells.back()))
      cells = cells.first(cells.size() - 1);  // after a delimiter at the end of the line
    const bool isTaken = orReport(report_, lineOf(path_, parser.line()), [&] {
      if (cells.size() != header_.size()) refuseRow(parser.line(), cells);
      take(parser.line(), cells);
    });
    if (!isTaken) damagedLines_.insert(parser.line());
  }
}

// Whether all of the first rows begin with a row name, for which R's write.table writes no name in
// the first line: "1", "2" … in quotes, or 1, 2 …
bool CsvFile::hasRowNames() const {
  constexpr int kRows = 100;
  Parser parser(*this);
  parser.next();
  for (int n = 0; n < kRows && parser.next(); ++n) {
    if (parser.cells().size() != header_.size() + 1) return false;
    const std::string_view first = parser.cells()[0];
    const bool isQuoted =
        first.data() > reinterpret_cast<const char*>(bytes_.data()) && first.data()[-1] == '"';
    if (!isQuoted && first != std::to_string(n + 1)) return false;
  }
  return true;
}

void CsvFile::refuseRow(std::uint64_t line, std::span<const std::string_view> cells) const {
  if (cells.size() > header_.size() && cells.size() <= header_.size() + unnamedEnd_) {
    throw DataError("data-damaged",
                    lineOf(path_, line) + ": the cell '" + printable(cells.back(), 60) +
                        "' is in a column without a name",
                    "give the column a name in the first line, or remove the cell");
  }
  throw DataError(
      "data-damaged",
      lineOf(path_, line) + ": the row has " + countText(cells.size(), "cell") +
          ", but the header has " + std::to_string(header_.size()),
      hasRowNames()
          ? "the first column has no name in the first line, as R writes row names: name it, or "
            "write the file in R with row.names = FALSE"
      : cells.size() == header_.size() + 1 && delimiter_ == ','
          ? "quote cells that contain the delimiter, a decimal comma or a line break; the first "
            "line needs a name for each column"
          : "quote cells that contain the delimiter or a line break; the first line needs a name "
            "for each column");
}

}  // namespace cleave
