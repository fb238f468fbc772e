// What the server writes down of a run, batch by batch. Device thread, but for the first and the
// last row.
#pragma once

#include <optional>

#include "common/core/clock.h"
#include "common/pipeline/engine.h"
#include "common/pipeline/run_files.h"

namespace cleave {

class RunRecord {
 public:
  RunRecord(RunFiles& files, std::uint64_t stepsPerEpoch)
      : files_(files), stepsPerEpoch_(stepsPerEpoch) {}

  void begin(const LinkTotals& totals);  // after the handshake
  // Throws RunError "cannot-write": the rows of an earlier batch could not be written, as where the
  // disk is full. A run that leaves no record is not worth its time.
  void finishedBatch(const Engine& engine, std::optional<double> betweenSteps,
                     const LinkTotals& totals);
  void end(const LinkTotals& totals);  // the connection is closed

 private:
  void refuseUnwritten() const;
  void writeEpoch();

  RunFiles& files_;
  const std::uint64_t stepsPerEpoch_;
  SteadyTime last_;
  LinkTotals lastTotals_;
  std::optional<EpochRow> epoch_;  // not yet written
};

}  // namespace cleave
