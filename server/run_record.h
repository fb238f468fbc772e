// The server's records of a run, batch by batch. Any thread: batches end on the device thread; the
// first and the last row are written on the io thread.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "common/core/clock.h"
#include "common/engine/engine.h"
#include "common/record/run_files.h"
#include "server/disk_share.h"

namespace cleave {

// The epoch of a step, from 1; 0 for step 0. If `stepsPerEpoch` is unknown (0), all steps belong to
// the first epoch.
constexpr std::uint64_t epochOf(std::uint64_t step, std::uint64_t stepsPerEpoch) {
  if (step == 0) return stepsPerEpoch == 0 ? 1 : 0;
  return stepsPerEpoch == 0 ? 1 : (step - 1) / stepsPerEpoch + 1;
}

class RunRecord {
 public:
  RunRecord(RunFiles& files, std::uint64_t stepsPerEpoch, std::shared_ptr<const DiskShare> disk)
      : files_(files), stepsPerEpoch_(stepsPerEpoch), disk_(std::move(disk)) {}

  void begin(const LinkTotals& totals);  // after the handshake
  // The run continues from the checkpoint of this step.
  void resumed(std::uint64_t step, const LinkTotals& totals);
  // Throws RunError "cannot-write" (the rows of an earlier batch could not be written, for example
  // because the disk is full), "disk-share-full" or "disk-reserve" (there was no room for them): a
  // run without records must not continue.
  void finishedBatch(const Engine& engine, std::optional<double> betweenSteps,
                     const LinkTotals& totals);
  // The connection is closed. Nothing is recorded after this.
  void end(const LinkTotals& totals);

 private:
  void refuseUnwritten() const;
  void writeEpoch();

  RunFiles& files_;
  const std::uint64_t stepsPerEpoch_;
  const std::shared_ptr<const DiskShare> disk_;
  std::mutex mutex_;  // guards the members below
  bool ended_ = false;
  SteadyTime last_;
  LinkTotals lastTotals_;
  std::optional<EpochRow> epoch_;  // not yet written
};

}  // namespace cleave
