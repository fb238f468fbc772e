// What a run leaves behind: CSV rows and log lines, written by a thread of their own, so that recording blocks neither
// the io nor the device thread. RFC 4180, one header, UTF-8, whole lines at a time.
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
std::string formatCell(const Cell& cell);  // doubles with 9 significant digits, quoting where needed

// Now in UTC: "2026-01-31T12:34:56.789Z".
std::string utcNow();

// One thread for all files of a process. Any thread may call.
class Recorder {
 public:
  Recorder();
  ~Recorder();  // writes what is left
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  class Table {
   public:
    // Requires as many cells as columns. Returns at once. When 2^18 rows wait (a disk that hangs), further ones are dropped and
    // counted.
    void row(std::vector<Cell> cells);
    ~Table();

   private:
    friend class Recorder;
    struct State;
    std::shared_ptr<State> state_;
    std::shared_ptr<void> recorder_;
  };

  // Creates the file with its header. Throws RunError where that fails; a file that exists is an error.
  std::shared_ptr<Table> table(const std::string& path, const std::vector<std::string>& columns);
  // Waits until all rows so far are in their files. Throws RunError: the first failed write of any table (disk full), or
  // rows dropped.
  void flush();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Writes `text` to `path` by temporary file, fsync and rename. Throws RunError.
void writeFileDurably(const std::string& path, std::string_view text);

}  // namespace cleave
