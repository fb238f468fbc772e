// The server's records of a run, batch by batch. Any thread: batches end on the device thread; the
// first and the last row are written on the io thread.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "common/core/clock.h"
#include "common/engine/engine.h"
#include "common/record/run_files.h"
#include "server/store/disk_share.h"

namespace cleave {

// The epoch of a step, from 1; 0 for step 0. If `stepsPerEpoch` is unknown (0), all steps belong to
// the first epoch.
constexpr std::uint64_t epochOf(std::uint64_t step, std::uint64_t stepsPerEpoch) {
  if (step == 0) return stepsPerEpoch == 0 ? 1 : 0;
  return stepsPerEpoch == 0 ? 1 : (step - 1) / stepsPerEpoch + 1;
}

class RunRecord {
 public:
  RunRecord(std::shared_ptr<RunFiles> files, std::uint64_t stepsPerEpoch,
            std::shared_ptr<const DiskShare> disk)
      : files_(std::move(files)), stepsPerEpoch_(stepsPerEpoch), disk_(std::move(disk)) {}

  void begin(const LinkTotals& totals);  // call after the handshake
  // The row of the current epoch so far, as JSON, for a checkpoint.
  std::string notes() const;
  // The run continues from the checkpoint of this step, which contains these notes().
  void resumed(std::uint64_t step, const std::string& notes, const LinkTotals& totals);
  // Throws RunError if the rows of an earlier batch were not written, because a run without records
  // must not continue: "cannot-write" after a failed write, for example on a full disk;
  // "disk-share-full" or "disk-reserve" if the limits left no room.
  void finishedBatch(const Engine& engine, std::optional<double> betweenSteps,
                     const LinkTotals& totals);
  // Call when the connection is closed. Record nothing afterwards.
  void end(const LinkTotals& totals);
  // What is missing in the run's files, for the log, unless finishedBatch() has thrown it or this
  // function has returned it before. Call when the rows are in their files.
  std::optional<std::string> missing();

 private:
  void refuseUnwritten();
  std::optional<std::string> writeFailure() const;
  void writeEpoch();

  const std::shared_ptr<RunFiles> files_;
  const std::uint64_t stepsPerEpoch_;
  const std::shared_ptr<const DiskShare> disk_;
  mutable std::mutex mutex_;  // guards the members below
  bool ended_ = false;
  bool isReported_ = false;  // a failure to write the rows
  SteadyTime last_;
  LinkTotals lastTotals_;
  std::optional<EpochRow> epoch_;  // the current epoch's row, not yet written
};

}  // namespace cleave
