#include "client/data/csv_file.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "client/data/unicode.h"
#include "client/data/unpack.h"
#include "common/core/error.h"
#include "common/core/printable.h"

namespace cleave {
namespace {

constexpr std::size_t kMaxColumns = 1 << 16;

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

void checkUtf8(std::string_view text, const std::string& path, std::uint64_t line) {
  if (isUtf8(text)) return;
  throw UsageError("data-damaged",
                   lineOf(path, line) + ": '" + printable(text, 60) + "' is not UTF-8",
                   "convert the file, for example: iconv -f latin1 -t utf-8 OLD.csv > NEW.csv");
}

// Reads row by row. A cell is a view of the file, or of `unquoted_` if it has doubled quotes.
class CsvFile::Parser {
 public:
  explicit Parser(const CsvFile& file)
      : file_(file), text_(reinterpret_cast<const char*>(file.bytes_.data()), file.bytes_.size()) {
    if (text_.starts_with("\xEF\xBB\xBF")) at_ = 3;  // the byte order mark
  }

  // Reads the next row. Returns false at the end.
  bool next() {
    cells_.clear();
    unquoted_.clear();
    while (at_ < text_.size() && takeLineEnd()) continue;  // blank lines
    if (at_ == text_.size()) return false;
    rowLine_ = line_;
    for (;;) {
      takeCell();
      if (at_ == text_.size() || takeLineEnd()) return true;
      ++at_;  // the delimiter
    }
  }

  std::uint64_t line() const { return rowLine_; }
  std::span<const std::string_view> cells() const { return cells_; }

 private:
  [[noreturn]] void fail(std::uint64_t line, const std::string& fault,
                         const std::string& hint) const {
    throw UsageError("data-damaged", lineOf(file_.path_, line) + ": " + fault, hint);
  }

  bool takeLineEnd() {
    const std::size_t length = text_.substr(at_).starts_with("\r\n") ? 2
                               : text_[at_] == '\n'                  ? 1
                                                                     : 0;
    at_ += length;
    line_ += length > 0 ? 1 : 0;
    return length > 0;
  }

  // Takes the text up to a delimiter or the end of the line or file.
  void takeCell() {
    if (cells_.size() == kMaxColumns)
      fail(rowLine_, "the row has more than 65536 cells", "check the file's delimiter");
    if (at_ < text_.size() && text_[at_] == '"') return takeQuoted();
    const std::size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != file_.delimiter_ && text_[at_] != '\n') ++at_;
    const bool endsLine = at_ == text_.size() || text_[at_] == '\n';
    if (endsLine && at_ > begin && text_[at_ - 1] == '\r') {
      cells_.push_back(text_.substr(begin, at_ - 1 - begin));
      if (at_ < text_.size()) --at_;
      return;
    }
    cells_.push_back(text_.substr(begin, at_ - begin));
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
    if (at_ == text_.size() || text_[at_] == file_.delimiter_ || text_[at_] == '\n' ||
        text_.substr(at_) == "\r" || text_.substr(at_).starts_with("\r\n")) {
      if (text_.substr(at_) == "\r") ++at_;
      return;
    }
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
  std::string_view text_;
  std::size_t at_ = 0;
  std::uint64_t line_ = 1, rowLine_ = 1;
  std::vector<std::string_view> cells_;
  std::deque<std::string> unquoted_;
};

// Some spreadsheets write .csv files with tabs or semicolons.
char CsvFile::findDelimiter() const {
  if (withoutGzip(path_).ends_with(".tsv")) return '\t';
  const auto end = std::find(bytes_.begin(), bytes_.end(), '\n');
  for (const char each : {',', '\t', ';'}) {
    if (std::find(bytes_.begin(), end, static_cast<std::uint8_t>(each)) != end) return each;
  }
  return ',';
}

CsvFile::CsvFile(const std::string& path)
    : path_(path), bytes_(readUnpacked(path, kMaxDataBytes)), delimiter_(findDelimiter()) {
  Parser parser(*this);
  if (!parser.next()) {
    throw UsageError("data-empty", path + " has no header and no rows",
                     "write the names of the columns to its first line");
  }
  header_.assign(parser.cells().begin(), parser.cells().end());
  for (const std::string& name : header_) checkUtf8(name, path, 1);
  for (std::size_t n = 0; n < header_.size(); ++n) {
    if (std::find(header_.begin(), header_.begin() + static_cast<std::ptrdiff_t>(n), header_[n]) !=
        header_.begin() + static_cast<std::ptrdiff_t>(n)) {
      throwDamaged(path, "has two columns named '" + printable(header_[n], 100) + "'",
                   "give each column its own name in the first line");
    }
  }
}

std::optional<std::size_t> CsvFile::find(std::string_view column) const {
  const auto found = std::find(header_.begin(), header_.end(), column);
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

void CsvFile::forEachRow(
    const std::function<void(std::uint64_t, std::span<const std::string_view>)>& take) const {
  Parser parser(*this);
  parser.next();  // the header
  while (parser.next()) {
    if (parser.cells().size() != header_.size()) {
      throw UsageError("data-damaged",
                       lineOf(path_, parser.line()) + ": the row has " +
                           std::to_string(parser.cells().size()) + " cells, but the header has " +
                           std::to_string(header_.size()),
                       "quote cells that contain the delimiter or a line break");
    }
    take(parser.line(), parser.cells());
  }
}

}  // namespace cleave
