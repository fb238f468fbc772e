// A run's CSV files and other files of records, written by a dedicated thread so that recording
// blocks neither the io thread nor the device thread. CSV: RFC 4180, one header, UTF-8, written in
// whole lines; lines end in "\n", which pandas, DuckDB, gnuplot and spreadsheets accept. Every row
// is in its file within a second, so a killed process loses at most the rows of its last second.
// The kernel may kill a process in the middle of a write: anything after the last "\n" is a partial
// row, and readers drop it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "common/core/error.h"

namespace cleave {

// std::monostate is an empty cell: the value is not known.
using Cell = std::variant<std::monostate, std::int64_t, std::uint64_t, double, std::string>;
// Doubles get 9 significant digits. Text is quoted if RFC 4180 requires it, and prefixed with ' if
// it begins with = + - @, a tab or CR, which a spreadsheet would run as a formula, unless the text
// is a number, such as -1.
std::string formatCell(const Cell& cell);
// A row with its line end. Requires at least one cell.
std::string formatLine(const std::vector<Cell>& cells);

// The current UTC time: "2026-01-31T12:34:56.789Z".
std::string utcNow();

// A budget of bytes to which rows are charged before they are recorded, such as a share of the
// disk. Any thread.
class RowBudget {
 public:
  virtual ~RowBudget() = default;
  // Charges `bytes`. Returns false if they exceed the budget.
  virtual bool take(std::size_t bytes) = 0;
};

// One thread for all files of a process. Any thread may call.
class Recorder {
  struct State;
  struct File;

 public:
  // Maximum size of the rows waiting to be written.
  static constexpr std::size_t kMaxWaitingBytes = std::size_t{16} << 20;

  Recorder();
  ~Recorder();  // writes waiting rows
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // A file of records of any form. Records added after the recorder is destroyed are dropped.
  class Stream {
   public:
    // Does not wait for the disk: if 2^18 records or kMaxWaitingBytes are waiting (the disk hangs),
    // further records are dropped and counted.
    void append(std::string_view record);
    // The errno of the first failed write, such as ENOSPC, or 0. After a failure the file takes no
    // more records.
    int error() const;
    // Records that append() has dropped.
    std::uint64_t dropped() const;
    // Whether a record has exceeded the budget. The file then takes no more records.
    bool isOverBudget() const;
    const std::string& path() const;
    ~Stream();  // does not discard waiting records
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

   private:
    friend class Recorder;
    Stream(std::shared_ptr<Recorder::State> recorder, std::shared_ptr<File> file);

    std::shared_ptr<Recorder::State> recorder_;
    std::shared_ptr<File> file_;
  };

  // A CSV file, whose records are its rows.
  class Table {
   public:
    // Requires one cell per column. Like Stream::append(), does not wait for the disk.
    void row(std::vector<Cell> cells);
    int error() const { return stream_->error(); }
    std::uint64_t dropped() const { return stream_->dropped(); }
    bool isOverBudget() const { return stream_->isOverBudget(); }
    const std::string& path() const { return stream_->path(); }

   private:
    friend class Recorder;
    Table(std::shared_ptr<Stream> stream, std::size_t columns)
        : stream_(std::move(stream)), columns_(columns) {}

    std::shared_ptr<Stream> stream_;
    [[maybe_unused]] std::size_t columns_;  // asserted
  };

  // Creates the file with its header. Throws RunError if that fails or the file exists. With
  // `append`, rows are added to an existing file instead: its header must be the same, and an
  // incomplete last row, left by a killed process, is cut off. When rows would make the file larger
  // than `rotateBytes` (0: no limit), it is renamed and a new one begins with the header: steps.csv
  // becomes steps.1.csv, the next one steps.2.csv. A file exceeds the limit only if the header and
  // a single row do. Rows are charged to `budget`, if there is one; the header is not.
  std::shared_ptr<Table> table(const std::string& path, const std::vector<std::string>& columns,
                               std::size_t rotateBytes = 0,
                               std::shared_ptr<RowBudget> budget = nullptr, bool append = false);
  // Creates the file, which must not exist, with `head` as its first bytes. Throws RunError.
  std::shared_ptr<Stream> stream(const std::string& path, std::string_view head);
  // Waits until all rows so far are in their files. Throws RunError for the first failed write of
  // any file, or if rows were dropped.
  void flush();
  // Like flush(), and makes the rows durable.
  void sync();
  // Rows not yet in their files. Any thread.
  std::size_t waitingRows() const;

 private:
  std::shared_ptr<Stream> begin(std::shared_ptr<File> file, bool exists);

  std::shared_ptr<State> state_;
};

}  // namespace cleave
