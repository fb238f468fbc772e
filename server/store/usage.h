// What each identity has used of the server, in STORE/.usage/usage.jsonl: a JSON object per line,
// for `cleave-server usage` (docs/metrics.md describes the file).
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "common/core/clock.h"
#include "common/engine/engine.h"
#include "common/link/transfers.h"

namespace cleave {

struct Usage {
  std::uint64_t sessions = 0;  // connections of runs and trials
  std::uint64_t steps = 0;     // training steps
  double deviceSeconds = 0;    // computing on the device
  std::uint64_t bytesUp = 0, bytesDown = 0;

  Usage& operator+=(const Usage& other);
  bool operator==(const Usage&) const = default;
};

// Counts a run's usage. Any thread.
class UsageMeter {
 public:
  void connected();
  // `actions`: those of the batch, on this side.
  void finishedBatch(Phase phase, const ActionSeconds& actions);
  // The usage since the last call. `totals`: the run's transfers so far.
  Usage take(const LinkTotals& totals);

 private:
  std::mutex mutex_;
  Usage usage_;
  std::uint64_t up_ = 0, down_ = 0;  // until the last take()
};

// A line of the file: the usage of a run since its previous line.
struct UsageLine {
  std::string time;  // utcNow() when it was written
  std::string identity, run;
  Usage usage;
};

inline constexpr std::size_t kUsageFileBytes = std::size_t{4} << 20;
inline constexpr int kUsageFiles = 16;

inline std::string usageFolder(const std::string& store) { return store + "/.usage"; }

// Appends lines to FOLDER/usage.jsonl. If the file would exceed kUsageFileBytes, it becomes
// usage.1.jsonl, that one usage.2.jsonl and so on; only kUsageFiles files are kept. A line that a
// killed process has left incomplete ends at the next line. Lines that cannot be written are kept
// and written with the next one, added up per run; beyond kMaxPendingRuns, per identity with an
// empty `run`. One thread at a time.
class UsageFile {
 public:
  static constexpr std::size_t kMaxPendingRuns = 512;

  explicit UsageFile(std::string folder) : folder_(std::move(folder)) {}
  // Returns 0 or the errno.
  int append(const UsageLine& line);

 private:
  int write();
  int rotate() const;

  const std::string folder_;
  // Lines that are not in the file, by identity and run.
  std::map<std::pair<std::string, std::string>, UsageLine> pending_;
};

// Calls `take` for the lines in the folder's files, from the oldest to the newest. Returns the
// number of lines that are damaged. Throws UsageError "cannot-read" if a file exists and cannot be
// read.
std::size_t readUsage(const std::string& folder, const std::function<void(UsageLine)>& take);

// The accounting of a running server: adds up the usage of runs, and writes a line per run every
// ten minutes and at its end. io thread only.
class UsageBook {
 public:
  static constexpr std::chrono::minutes kEvery{10};

  // `folder`: that of the file; empty: none is written. `thread`: a single thread, which writes it.
  UsageBook(const std::string& folder, boost::asio::any_io_executor thread);

  void add(const std::string& identity, const std::string& run, const Usage& usage,
           SteadyTime time);
  // Writes the run's line. Does not wait for the disk.
  void close(const std::string& identity, const std::string& run);
  // Writes the lines that are due. Call it about once per second; does not wait for the disk.
  void look(SteadyTime time);
  // By identity, since the server started.
  const std::map<std::string, Usage>& totals() const { return totals_; }

 private:
  struct Open {
    SteadyTime since;
    Usage usage;
  };
  using Key = std::pair<std::string, std::string>;  // identity, run
  void write(const Key& key, const Usage& usage);

  struct Writer {
    UsageFile file;
    bool hasFailed = false;  // the last line could not be written
  };
  std::shared_ptr<Writer> writer_;  // used on thread_; null: no file
  boost::asio::any_io_executor thread_;
  std::map<std::string, Usage> totals_;
  std::map<Key, Open> open_;
};

}  // namespace cleave
