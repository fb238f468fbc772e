#include "client/report/records/csv_reader.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>

namespace cleave {
namespace {

constexpr std::string_view kNext = "+1";  // suffix that requests the column after the named one

constexpr std::size_t kReadBytes = std::size_t{1} << 20;
// In bytes. Cleave writes lines of about 300 bytes.
constexpr std::size_t kLongestLine = std::size_t{1} << 16;

bool sameFile(int file, const std::string& path) {
  struct stat opened {
  }, named{};
  return ::fstat(file, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

std::optional<int> digits(std::string_view text, std::size_t from, std::size_t count) {
  int value = 0;
  for (std::size_t i = from; i < from + count; ++i) {
    if (text[i] < '0' || text[i] > '9') return std::nullopt;
    value = 10 * value + (text[i] - '0');
  }
  return value;
}

std::optional<double> parseUtc(std::string_view text) {
  constexpr std::string_view kPattern = "dddd-dd-ddTdd:dd:dd.dddZ";
  if (text.size() != kPattern.size()) return std::nullopt;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (kPattern[i] != 'd' && kPattern[i] != text[i]) return std::nullopt;
  }
  const auto year = digits(text, 0, 4), month = digits(text, 5, 2), day = digits(text, 8, 2),
             hour = digits(text, 11, 2), minute = digits(text, 14, 2), second = digits(text, 17, 2),
             millisecond = digits(text, 20, 3);
  if (!year || !month || !day || !hour || !minute || !second || !millisecond) return std::nullopt;
  const std::chrono::year_month_day date{std::chrono::year(*year),
                                         std::chrono::month(static_cast<unsigned>(*month)),
                                         std::chrono::day(static_cast<unsigned>(*day))};
  if (!date.ok()) return std::nullopt;
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  return 86400.0 * static_cast<double>(days) + 3600.0 * *hour + 60.0 * *minute + *second +
         1e-3 * *millisecond;
}

// Returns the content of a quoted cell (RFC 4180).
std::string unquote(std::string_view cell) {
  std::string text;
  for (std::size_t i = 1; i + 1 < cell.size(); ++i) {
    text += cell[i];
    if (cell[i] == '"') ++i;
  }
  return text;
}

}  // namespace

std::optional<double> CsvRow::number(std::size_t column) const {
  const std::string_view cell = cells_[column];
  if (cell.empty()) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc() || end != cell.data() + cell.size()) {
    garble(column);
    return std::nullopt;
  }
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

double CsvRow::time(std::size_t column) const {
  const std::optional<double> seconds = parseUtc(cells_[column]);
  if (!seconds) garble(column);
  return seconds.value_or(0);
}

CsvReader::CsvReader(std::string folder, std::string name, std::vector<std::string> columns)
    : folder_(std::move(folder)),
      name_(std::move(name)),
      columns_(std::move(columns)),
      source_(columns_.size()),
      names_(columns_.size()),
      wanted_(columns_.size()) {
  // The first number is searched for, because users may have removed old parts.
  constexpr std::uint64_t kMaxParts = 100000;
  if (exists(partPath(1)) || !std::filesystem::is_directory(folder_)) return;
  std::uint64_t min = kMaxParts;
  std::error_code ignored;
  const std::string prefix = name_ + ".";
  constexpr std::string_view kSuffix = ".csv";
  for (const auto& entry : std::filesystem::directory_iterator(folder_, ignored)) {
    const std::string file = entry.path().filename();
    if (!file.starts_with(prefix) || !file.ends_with(kSuffix)) continue;
    if (file.size() <= prefix.size() + kSuffix.size()) continue;  // the current part
    const std::string_view number(file.data() + prefix.size(),
                                  file.size() - prefix.size() - kSuffix.size());
    std::uint64_t part = 0;
    const auto end = std::from_chars(number.data(), number.data() + number.size(), part).ptr;
    if (end == number.data() + number.size() && part > 0) min = std::min(min, part);
  }
  partsMissing_ = min < kMaxParts;
  if (partsMissing_) part_ = min;
}

std::size_t CsvReader::column(std::string name) {
  columns_.push_back(std::move(name));
  source_.emplace_back();
  names_.emplace_back();
  wanted_.emplace_back();
  return columns_.size() - 1;
}

std::string CsvReader::partPath(std::uint64_t part) const {
  return fmt::format("{}/{}.{}.csv", folder_, name_, part);
}

// Opens part `part_`: the file NAME.<part_>.csv if the part is rotated, otherwise NAME.csv. If
// NAME.csv is rotated at the same time, the opened file may be a later part, so the loop tries
// again.
bool CsvReader::openNext() {
  for (;;) {
    const std::string rotated = partPath(part_);
    const bool isRotated = exists(rotated);
    const std::string path = isRotated ? rotated : folder_ + "/" + name_ + ".csv";
    file_ = OpenFile(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file_) {
      if (errno != ENOENT) failure_ = fmt::format("cannot be read: {}", std::strerror(errno));
      return false;
    }
    if (isRotated || !exists(rotated) || sameFile(file_.get(), rotated)) break;
  }
  found_ = true;
  line_ = 0;
  rest_.clear();
  return true;
}

// Whether another part follows the open one.
bool CsvReader::partIsOver() const { return sameFile(file_.get(), partPath(part_)); }

void CsvReader::read(const std::function<void(const CsvRow&)>& take) {
  while (failure_.empty()) {
    if (!file_ && !openNext()) return;
    const bool over = partIsOver();  // must be checked before the last bytes are read
    readPart(take);
    if (!over || !failure_.empty()) return;
    if (!rest_.empty()) garbled("the line is incomplete");
    file_.close();
    ++part_;
  }
}

void CsvReader::readPart(const std::function<void(const CsvRow&)>& take) {
  std::string buffer;
  for (;;) {
    buffer.swap(rest_);
    const std::size_t before = buffer.size();
    buffer.resize(before + kReadBytes);
    const ssize_t got = ::read(file_.get(), buffer.data() + before, kReadBytes);
    if (got < 0 && errno != EINTR)
      failure_ = fmt::format("cannot be read: {}", std::strerror(errno));
    buffer.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    std::size_t begin = 0;
    for (std::size_t end = buffer.find('\n', before); end != std::string::npos && failure_.empty();
         end = buffer.find('\n', begin)) {
      ++line_;
      std::string_view line(buffer.data() + begin, end - begin);
      if (line.ends_with('\r')) line.remove_suffix(1);
      takeLine(line, take);
      begin = end + 1;
    }
    rest_.assign(buffer, begin);
    // Cleave does not write lines that are this long.
    if (rest_.size() > kLongestLine) rest_.resize(kLongestLine);
    if (got <= 0 || !failure_.empty()) return;
  }
}

void CsvReader::takeLine(std::string_view line, const std::function<void(const CsvRow&)>& take) {
  split(line);
  if (line_ == 1) return takeHeader();
  if (cells_.size() != headerCells_) {
    return garbled(fmt::format("it has {} cells instead of {}", cells_.size(), headerCells_));
  }
  for (std::size_t column = 0; column < columns_.size(); ++column) {
    wanted_[column] = source_[column] ? cells_[*source_[column]] : std::string_view();
  }
  const CsvRow row(wanted_);
  take(row);
  if (const auto column = row.garbledColumn()) {
    const char* fault = !source_[*column]          ? "is missing"
                        : wanted_[*column].empty() ? "is empty"
                                                   : "is invalid";
    return garbled(fmt::format("its {} {}", columns_[*column], fault));
  }
  ++rows_;
}

void CsvReader::takeHeader() {
  headerCells_ = cells_.size();
  bool any = false;
  for (std::size_t column = 0; column < columns_.size(); ++column) {
    const std::string_view wanted = columns_[column];
    const bool isNext = wanted.ends_with(kNext);
    auto found = std::find(cells_.begin(), cells_.end(),
                           isNext ? wanted.substr(0, wanted.size() - kNext.size()) : wanted);
    if (isNext && found != cells_.end()) ++found;
    source_[column] = found == cells_.end()
                          ? std::nullopt
                          : std::optional(static_cast<std::size_t>(found - cells_.begin()));
    if (found != cells_.end()) names_[column] = *found;
    any = any || source_[column];
  }
  if (!any) failure_ = "its first line is not this table's header, so the file was not read";
}

// Fills cells_, which point into the line or into unquoted_.
void CsvReader::split(std::string_view line) {
  cells_.clear();
  unquoted_.clear();
  unquoted_.reserve(line.size() / 2 + 1);  // keeps pointers into it valid
  const bool anyQuotes = line.find('"') != std::string_view::npos;
  std::size_t begin = 0;
  for (;;) {
    std::size_t end = line.find(',', begin);
    if (anyQuotes && begin < line.size() && line[begin] == '"') {
      std::size_t quote = line.find('"', begin + 1);
      while (quote != std::string_view::npos && quote + 1 < line.size() && line[quote + 1] == '"') {
        quote = line.find('"', quote + 2);
      }
      if (quote != std::string_view::npos) {
        unquoted_.push_back(unquote(line.substr(begin, quote + 1 - begin)));
        cells_.emplace_back(unquoted_.back());
        end = line.find(',', quote);
        if (end == std::string_view::npos) return;
        begin = end + 1;
        continue;
      }
    }
    if (end == std::string_view::npos) {
      cells_.push_back(line.substr(begin));
      return;
    }
    cells_.push_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
}

void CsvReader::garbled(const std::string& why) {
  if (garbledRows_++ > 0) return;
  const std::string part = partIsOver() ? fmt::format("part {}, ", part_) : "";
  firstGarbled_ = fmt::format("the first is {}line {}: {}", part, line_, why);
}

std::vector<std::string> CsvReader::problems(bool following) const {
  const std::string file = name_ + ".csv";
  std::vector<std::string> problems;
  if (!found_ && failure_.empty()) {
    if (!following) problems.push_back(file + " is missing");
    return problems;
  }
  if (partsMissing_) problems.push_back(fmt::format("the first parts of {} are missing", file));
  if (!failure_.empty()) problems.push_back(file + ": " + failure_);
  if (failure_.empty() && headerCells_ == 0) problems.push_back(file + " is empty");
  if (headerCells_ > 0 && failure_.empty()) {
    std::string missing;
    for (std::size_t column = 0; column < columns_.size(); ++column) {
      const bool isOptional = columns_[column].ends_with(kNext);
      if (!source_[column] && !isOptional)
        missing += (missing.empty() ? "" : ", ") + columns_[column];
    }
    if (!missing.empty()) problems.push_back(fmt::format("{} lacks columns: {}", file, missing));
  }
  if (garbledRows_ > 0) {
    problems.push_back(fmt::format("{}: {} of {} rows cannot be read and are skipped; {}", file,
                                   garbledRows_, rows_ + garbledRows_, firstGarbled_));
  }
  if (!following && !rest_.empty()) {
    problems.push_back(file + " ends with an incomplete line, which is skipped");
  }
  return problems;
}

}  // namespace cleave
