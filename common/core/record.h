// What a run leaves behind: CSV rows and log lines, written by a thread of their own, so that
// recording blocks neither the io nor the device thread. RFC 4180, one header, UTF-8, whole lines
// at a time; but lines end in "\n", as on any Unix: pandas, DuckDB, gnuplot and spreadsheets read
// both. Every row is in its file within a second, so that a killed process loses no more than that.
// The kernel may end a killed process in the middle of a write: what stands behind the last "\n" is
// a piece of a row, and readers drop it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/core/error.h"

namespace cleave {

// An empty cell is std::monostate: the value is not known here.
using Cell = std::variant<std::monostate, std::int64_t, std::uint64_t, double, std::string>;
// Doubles with 9 significant digits. Text in quotes where RFC 4180 needs them; after a ' where it
// begins with = + - or @, which a spreadsheet would run as a formula.
std::string formatCell(const Cell& cell);

// Now in UTC: "2026-01-31T12:34:56.789Z".
std::string utcNow();

// Rows are charged to it before they are recorded, such as to a share of the disk. Any thread.
class RowBudget {
 public:
  virtual ~RowBudget() = default;
  // Charges so many bytes. False: there is no room for them.
  virtual bool take(std::size_t bytes) = 0;
};

// One thread for all files of a process. Any thread may call.
class Recorder {
  struct State;

 public:
  // Maximum of rows that wait to be written, in bytes.
  static constexpr std::size_t kMaxWaitingBytes = std::size_t{16} << 20;

  Recorder();
  ~Recorder();  // writes what is left
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // A table that outlives the recorder drops its rows.
  class Table {
   public:
    // Requires as many cells as columns. Returns at once. When 2^18 rows or kMaxWaitingBytes wait
    // (a disk that hangs), further ones are dropped and counted.
    void row(std::vector<Cell> cells);
    // The errno of the write that failed (disk full), 0 if none did. After it the file takes no
    // more rows.
    int error() const;
    // Whether the budget had no room for a row. After that the file takes no more rows.
    bool isOverBudget() const;
    const std::string& path() const;
    ~Table();  // its rows so far are still written
    Table(const Table&) = delete;
    Table& operator=(const Table&) = delete;

   private:
    friend class Recorder;
    struct File;
    Table(std::shared_ptr<Recorder::State> recorder, std::shared_ptr<File> file,
          std::size_t columns);

    std::shared_ptr<Recorder::State> recorder_;
    std::shared_ptr<File> file_;
    std::size_t columns_;
  };

  // Creates the file with its header. Throws RunError where that fails; a file that exists is an
  // error. Rows that would make the file larger than `rotateBytes` (0: no limit) begin a new one,
  // with the header, after the old one was renamed: steps.csv becomes steps.1.csv, the next one
  // steps.2.csv. A file exceeds the limit only where what is written at once does. Rows are charged
  // to `budget`, if there is one; the header is not.
  std::shared_ptr<Table> table(const std::string& path, const std::vector<std::string>& columns,
                               std::size_t rotateBytes = 0,
                               std::shared_ptr<RowBudget> budget = nullptr);
  // Waits until all rows so far are in their files. Throws RunError: the first failed write of any
  // table (disk full), or rows dropped.
  void flush();
  // That are not in their files yet. Any thread.
  std::size_t waitingRows() const;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace cleave
