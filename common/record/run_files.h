// The files that a run writes on each side (docs/metrics.md is their contract): transfers.csv,
// steps.csv, epochs.csv. Bytes and seconds are recorded separately; every bandwidth is derived from
// them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/engine.h"
#include "common/files/record.h"
#include "common/link/transfers.h"
#include "common/predict/bound.h"

namespace cleave {

struct RunIdentity {
  std::string run;
  std::uint64_t session = 0;     // the server's number for the connection
  std::uint64_t generation = 0;  // rises with each connection of the run
};

// One row of steps.csv. Values unknown to a side stay empty.
struct StepRow {
  // "train", "eval"; "handshake", "bye": rows for the bytes before the first and after the last
  // batch; "resume": the run continues from the checkpoint of `step`.
  std::string phase;
  std::optional<std::uint64_t> step;
  std::optional<std::uint64_t> epoch;
  std::optional<MicroBatch> at;
  std::optional<double> learningRate;
  std::optional<double> gradientNorm;
  std::optional<double> seconds;
  std::optional<std::uint64_t> clientMemory, bodyMemory;  // bytes, as GradientReport::peakMemory
  std::optional<double> between;                          // train: EngineWorker::betweenSteps()
  ActionSeconds actions{};         // seconds by kind; 0: the action did not run on this side
  std::optional<StepCosts> costs;  // client, train; includes rates
  std::optional<StepBound> bound;  // computed from `costs`
  std::vector<std::optional<double>> metrics;  // one per metric name of the run
};

// One row of epochs.csv.
struct EpochRow {
  std::uint64_t epoch = 0;
  std::uint64_t steps = 0;
  std::uint64_t samples = 0;
  double trainSeconds = 0;
  std::optional<double> evalSeconds;
  std::vector<std::optional<double>> trainMetrics;
  std::vector<std::optional<double>> evalMetrics;
  // In a cohort whose members train together: those of this member's evaluation samples.
  std::vector<std::optional<double>> ownEvalMetrics = {};
};

// Receives rows as they are recorded. Any thread; these functions must not block.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  virtual void transfer(const TransferRecord& record) = 0;
  // The row covers the bytes and codec seconds from `before` to `after`.
  virtual void step(const StepRow& row, const LinkTotals& before, const LinkTotals& after) = 0;
};

class RunEvents;

class RunFiles {
 public:
  // Creates the three files in `folder`, which must exist. Throws RunError. `metrics` are the
  // metric columns that this side has; `hasOwn`: epochs.csv has those of EpochRow::ownEvalMetrics.
  // For `rotateBytes`, `budget` and `append`, see Recorder::table().
  RunFiles(Recorder& recorder, const std::string& folder, RunIdentity identity,
           std::vector<std::string> metrics, std::size_t rotateBytes = 0,
           const std::shared_ptr<RowBudget>& budget = nullptr, bool append = false,
           bool hasOwn = false);
  // An object that writes nothing, for trial sessions.
  RunFiles() = default;

  // The folder of the files; empty if it writes nothing.
  const std::string& folder() const { return folder_; }

  // Call before the first row. Null: no observer.
  void observe(std::shared_ptr<RunObserver> observer) { observer_ = std::move(observer); }

  // Call before the first row. Also records the rows for TensorBoard.
  void writeEvents(std::shared_ptr<RunEvents> events) { events_ = std::move(events); }

  // Any thread. Call when another connection continues the run; later rows have these numbers.
  // `isFirst`: whether the connection is to the first server of the run, whose session is recorded.
  void reconnected(std::uint64_t session, std::uint64_t generation, bool isFirst = true);

  // Any thread; these functions do not block.
  void transfer(const TransferRecord& record);
  // The row gets the bytes and codec seconds since the previous row.
  void step(const StepRow& row, const LinkTotals& totals);
  void epoch(const EpochRow& row, const LinkTotals& totals);

  // The file whose rows could not be written, and the errno. Rows are written up to a second after
  // they are recorded, so a run must check this periodically.
  struct WriteFailure {
    std::string path;
    int error = 0;
  };
  std::optional<WriteFailure> writeFailure() const;
  // Rows that were dropped because the disk was too slow.
  std::uint64_t droppedRows() const;
  // Whether a row exceeded the budget. A run must check this periodically.
  bool isOverBudget() const;

  static std::vector<std::string> transferColumns();
  static std::vector<std::string> stepColumns(const std::vector<std::string>& metrics);
  static std::vector<std::string> epochColumns(const std::vector<std::string>& metrics,
                                               bool hasOwn = false);

 private:
  const std::string folder_, run_;
  std::atomic<std::uint64_t> session_ = 0, generation_ = 0;
  const std::vector<std::string> metrics_;
  const bool hasOwn_ = false;
  std::shared_ptr<RunObserver> observer_;
  std::shared_ptr<RunEvents> events_;  // null: none
  std::mutex mutex_;
  LinkTotals lastStep_;
  LinkTotals lastEpoch_;
  std::shared_ptr<Recorder::Table> transfers_;
  std::shared_ptr<Recorder::Table> steps_;
  std::shared_ptr<Recorder::Table> epochs_;
};

struct RecordedStep {
  std::uint64_t step = 0, generation = 0;
};
// The last training step recorded in the folder's steps.csv, and the generation of its row. Reads
// only the end of the file; returns zeros if there is no training step in it, or no such file.
RecordedStep lastRecordedStep(const std::string& folder);

}  // namespace cleave
