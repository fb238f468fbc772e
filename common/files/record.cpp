#include "common/files/record.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <thread>
#include <utility>

#include "common/core/durable.h"
#include "common/core/failpoint.h"
#include "common/core/open_file.h"

namespace cleave {
namespace {

using namespace std::chrono_literals;

constexpr auto kWriteEvery = 1s;
// Waiting bytes that trigger a write before the interval ends.
constexpr std::size_t kWriteAtBytes = std::size_t{1} << 18;
constexpr std::size_t kMaxWaitingRows = std::size_t{1} << 18;

template <typename Number, typename... Format>
std::string formatNumber(Number value, Format... format) {
  std::array<char, 32> digits;
  return {digits.data(), std::to_chars(digits.begin(), digits.end(), value, format...).ptr};
}

// Whether the text consists of a number only, such as -1, +2.5e3 or -12,5 %.
bool isNumber(std::string_view text) {
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc::invalid_argument && parsed == end)
    return text[0] != '-' && text.find('(') == std::string_view::npos;
  if (text.ends_with('%')) text.remove_suffix(1);
  if (text.ends_with(' ')) text.remove_suffix(1);
  return !text.empty() && text.find_first_not_of("0123456789.,") == std::string_view::npos &&
         text.find_first_of("0123456789") != std::string_view::npos;
}

std::string formatText(const std::string& text) {
  const bool isFormula = !text.empty() &&
                         std::string_view("=+-@\t\r").find(text[0]) != std::string_view::npos &&
                         !isNumber(text);
  std::string cell = isFormula ? "'" : "";
  if (text.find_first_of(",\"\r\n") == std::string::npos) return cell += text;
  cell.insert(cell.begin(), '"');
  for (const char c : text) cell.append(c == '"' ? 2 : 1, c);
  return cell += '"';
}

// Length in bytes of the leading rows that fit into `max` bytes; at least one row.
std::size_t rowsThatFit(std::string_view rows, std::size_t max) {
  std::size_t fit = 0;
  bool isQuoted = false;
  for (std::size_t j = 0; j < rows.size(); ++j) {
    if (rows[j] == '"') isQuoted = !isQuoted;
    if (rows[j] != '\n' || isQuoted) continue;
    if (fit > 0 && j + 1 > max) break;
    fit = j + 1;
  }
  return fit;
}

}  // namespace

// One file. The recorder's mutex protects `lines` and `closing`; only the writer thread uses the
// other members. For a stream, a line is a record.
struct Recorder::File {
  File(std::string filePath, std::string head, std::size_t max, std::shared_ptr<RowBudget> of)
      : path(std::move(filePath)),
        header(std::move(head)),
        rotateBytes(max),
        budget(std::move(of)) {}

  // Returns 0 or the errno.
  int open() {
    bytes = 0;
    file = OpenFile(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666));
    return file ? 0 : errno;
  }

  // Opens an existing file to add rows. Returns false if it does not exist. Throws RunError.
  bool openExisting() {
    namespace fs = std::filesystem;
    std::error_code missing;
    if (!fs::exists(path, missing)) return false;
    file = OpenFile(::open(path.c_str(), O_RDWR | O_APPEND | O_CLOEXEC));
    if (!file) throwCannotWrite(path, "cannot be opened", errno);
    bytes = wholeRows();
    if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
      throwCannotWrite(path, "its incomplete last row cannot be cut off", errno);
    }
    while (fs::exists(numbered(rotated + 1), missing)) ++rotated;
    return true;
  }

  // Size of the file up to the end of its last whole row. Throws RunError if it has another header.
  std::size_t wholeRows() const {
    std::string start(header.size(), '\0');
    const ssize_t got = ::pread(file.get(), start.data(), start.size(), 0);
    if (got < 0) throwCannotWrite(path, "cannot be read", errno);
    start.resize(static_cast<std::size_t>(got));
    if (start != header && !header.starts_with(start)) {
      throw RunError("other-columns",
                     path + ": the columns of the file differ from those that this version writes",
                     "continue the run with the version of Cleave that started it")
          .about("--resume");
    }
    if (start != header) return 0;
    off_t end = ::lseek(file.get(), 0, SEEK_END);
    for (char last = 0; end > 0; --end) {
      if (::pread(file.get(), &last, 1, end - 1) != 1)
        throwCannotWrite(path, "cannot be read", errno);
      if (last == '\n') break;
    }
    return static_cast<std::size_t>(end);
  }

  // `rows` must be whole rows.
  void append(std::string_view rows) {
    if (rotateBytes == 0) return write(rows);
    while (error == 0 && !rows.empty()) {
      const std::size_t fit = rowsThatFit(rows, rotateBytes - std::min(bytes, rotateBytes));
      if (bytes > header.size() && bytes + fit > rotateBytes) {
        rotate();
        continue;
      }
      write(rows.substr(0, fit));
      rows.remove_prefix(fit);
    }
  }

  void write(std::string_view text) {
    if (error != 0) return;
    error = failingCall("record");
    if (error == 0) error = writeAll(file.get(), text);
    if (error != 0) {
      cutShort = ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0;
    } else {
      bytes += text.size();
    }
  }

  void sync() {
    if (error == 0 && ::fdatasync(file.get()) != 0) error = errno;
  }

  // Between rename and reopen a reader finds only the numbered files, which hold all rows so far.
  void rotate() {
    sync();  // a later sync() reaches only the new file
    file.close();
    if (error == 0)
      error = ::rename(path.c_str(), numbered(++rotated).c_str()) != 0 ? errno : open();
    write(header);
  }

  // Example: steps.3.csv for steps.csv.
  std::filesystem::path numbered(std::uint64_t number) const {
    std::filesystem::path result = path;
    return result.replace_extension("." + std::to_string(number) + result.extension().string());
  }

  const std::string path;
  const std::string header;
  const std::size_t rotateBytes;            // 0: no limit
  const std::shared_ptr<RowBudget> budget;  // null: none
  std::atomic<bool> isOverBudget = false;   // the file takes no more rows
  OpenFile file;
  std::uint64_t rotated = 0;
  std::string lines;     // whole lines waiting to be written
  bool closing = false;  // its Stream was destroyed

  std::size_t bytes = 0;  // in the file, whole lines
  bool cutShort = false;
  // errno of the failed write, or 0; readable on any thread. After an error the file takes no more
  // rows, because a gap would go unnoticed.
  std::atomic<int> error = 0;
  std::atomic<std::uint64_t> dropped = 0;
};

struct Recorder::State {
  // Writes waiting rows: every second, when many bytes wait, on a flush, and at the end.
  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      wake.wait_for(lock, kWriteEvery, [&] {
        return stopping || flushesAsked > flushesDone || waitingBytes >= kWriteAtBytes;
      });
      const bool last = stopping;
      writeWaiting(lock);
      if (last) return;
    }
  }

  // Holds the lock only to take the lines and to report, never while writing.
  void writeWaiting(std::unique_lock<std::mutex>& lock) {
    const std::uint64_t asked = flushesAsked;
    const bool sync = std::exchange(isSyncAsked, false);
    std::vector<std::pair<std::shared_ptr<File>, std::string>> batch;
    for (const auto& file : files) batch.emplace_back(file, std::exchange(file->lines, {}));
    std::erase_if(files, [](const auto& file) { return file->closing; });
    const std::size_t taken = waitingRows;
    const std::size_t takenBytes = unwrittenBytes;
    waitingBytes = 0;

    lock.unlock();
    std::string firstFailure;
    for (const auto& [file, lines] : batch) {
      if (file->error != 0) continue;
      if (!lines.empty()) file->append(lines);
      if (sync) file->sync();
      if (file->error != 0 && firstFailure.empty()) {
        firstFailure = file->path + ": rows could not be written: " + std::strerror(file->error) +
                       (file->cutShort ? " (the last row is cut short)" : "");
      }
    }
    batch.clear();  // closes files whose streams were destroyed
    lock.lock();

    if (failure.empty()) failure = firstFailure;
    waitingRows -= taken;
    unwrittenBytes -= takenBytes;
    flushesDone = asked;
    flushed.notify_all();
  }

  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable flushed;
  std::vector<std::shared_ptr<File>> files;
  std::size_t waitingRows = 0;     // not yet written
  std::size_t unwrittenBytes = 0;  // bytes of these rows
  std::size_t waitingBytes = 0;
  std::uint64_t droppedRows = 0;
  std::uint64_t flushesAsked = 0;
  std::uint64_t flushesDone = 0;
  bool isSyncAsked = false;
  std::string failure;  // the first failed write of any file
  bool stopping = false;
  std::thread thread;
};

std::string formatCell(const Cell& cell) {
  struct Formatter {
    std::string operator()(std::monostate) const { return ""; }
    std::string operator()(std::int64_t value) const { return formatNumber(value); }
    std::string operator()(std::uint64_t value) const { return formatNumber(value); }
    std::string operator()(double value) const {
      // The sign bit of a NaN differs between machines and has no meaning.
      return std::isnan(value) ? "nan" : formatNumber(value, std::chars_format::general, 9);
    }
    std::string operator()(const std::string& value) const { return formatText(value); }
  };
  return std::visit(Formatter{}, cell);
}

std::string formatLine(const std::vector<Cell>& cells) {
  std::string line;
  for (const Cell& cell : cells) {
    line += formatCell(cell);
    line += ',';
  }
  line.back() = '\n';
  return line;
}

std::string utcNow() {
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);
  tm utc;
  ::gmtime_r(&now.tv_sec, &utc);
  std::array<char, 64> text;
  const std::size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(text.data() + size, text.size() - size, ".%03dZ",
                static_cast<int>(now.tv_nsec / 1'000'000));
  return text.data();
}

Recorder::Recorder() : state_(std::make_shared<State>()) {
  state_->thread = std::thread([state = state_.get()] { state->run(); });
}

Recorder::~Recorder() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->wake.notify_one();
  state_->thread.join();
  state_->files.clear();
}

std::shared_ptr<Recorder::Table> Recorder::table(const std::string& path,
                                                 const std::vector<std::string>& columns,
                                                 std::size_t rotateBytes,
                                                 std::shared_ptr<RowBudget> budget, bool append) {
  assert(!columns.empty());
  auto file = std::make_shared<File>(path, formatLine({columns.begin(), columns.end()}),
                                     rotateBytes, std::move(budget));
  const bool exists = append && file->openExisting();
  return std::shared_ptr<Table>(new Table(begin(std::move(file), exists), columns.size()));
}

std::shared_ptr<Recorder::Stream> Recorder::stream(const std::string& path, std::string_view head) {
  return begin(std::make_shared<File>(path, std::string(head), 0, nullptr), false);
}

std::shared_ptr<Recorder::Stream> Recorder::begin(std::shared_ptr<File> file, bool exists) {
  if (!exists) {
    if (const int error = file->open()) throwCannotWrite(file->path, "cannot be created", error);
  }
  if (file->bytes == 0) file->write(file->header);
  if (file->error != 0) {
    if (!exists) ::unlink(file->path.c_str());
    throwCannotWrite(file->path, "cannot be written", file->error);
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->files.push_back(file);
  }
  return std::shared_ptr<Stream>(new Stream(state_, std::move(file)));
}

void Recorder::flush() {
  std::unique_lock lock(state_->mutex);
  const std::uint64_t ticket = ++state_->flushesAsked;
  state_->wake.notify_one();
  state_->flushed.wait(lock, [&] { return state_->flushesDone >= ticket; });
  if (!state_->failure.empty()) {
    throw RunError("cannot-write", state_->failure, "free disk space").about(kDisk);
  }
  if (state_->droppedRows > 0) {
    throw RunError(
        "rows-dropped",
        std::to_string(state_->droppedRows) + " rows were dropped, because the disk was too slow",
        "record to a faster disk, or less often");
  }
}

void Recorder::sync() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->isSyncAsked = true;
  }
  flush();
}

std::size_t Recorder::waitingRows() const {
  const std::lock_guard lock(state_->mutex);
  return state_->waitingRows;
}

Recorder::Stream::Stream(std::shared_ptr<Recorder::State> recorder, std::shared_ptr<File> file)
    : recorder_(std::move(recorder)), file_(std::move(file)) {}

Recorder::Stream::~Stream() {
  const std::lock_guard lock(recorder_->mutex);
  file_->closing = true;
}

int Recorder::Stream::error() const { return file_->error; }

std::uint64_t Recorder::Stream::dropped() const { return file_->dropped; }

bool Recorder::Stream::isOverBudget() const { return file_->isOverBudget; }

const std::string& Recorder::Stream::path() const { return file_->path; }

void Recorder::Stream::append(std::string_view record) {
  if (file_->isOverBudget) return;
  if (file_->budget && !file_->budget->take(record.size())) {
    file_->isOverBudget = true;
    return;
  }
  bool isMuch = false;
  {
    const std::lock_guard lock(recorder_->mutex);
    if (recorder_->stopping) return;
    if (recorder_->waitingRows == kMaxWaitingRows ||
        recorder_->unwrittenBytes + record.size() > Recorder::kMaxWaitingBytes) {
      ++recorder_->droppedRows;
      ++file_->dropped;
      return;
    }
    ++recorder_->waitingRows;
    recorder_->waitingBytes += record.size();
    recorder_->unwrittenBytes += record.size();
    file_->lines += record;
    isMuch = recorder_->waitingBytes >= kWriteAtBytes;
  }
  if (isMuch) recorder_->wake.notify_one();
}

void Recorder::Table::row(std::vector<Cell> cells) {
  assert(cells.size() == columns_);
  stream_->append(formatLine(cells));
}

}  // namespace cleave
