// Writes a run's scalars per training step and per epoch for TensorBoard.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/record/event_file.h"
#include "common/record/run_files.h"

namespace cleave {

class RunEvents {
 public:
  // Creates `folder` and writes into it. Throws RunError.
  RunEvents(Recorder& recorder, const std::string& folder, std::vector<std::string> metrics)
      : file_(recorder, folder), metrics_(std::move(metrics)) {}

  // The run's configuration, as YAML.
  void configuration(const std::string& yaml);
  // The row covers the bytes from `before` to `after`. One thread at a time.
  void step(const StepRow& row, const LinkTotals& before, const LinkTotals& after);
  // Records an epoch's scalars at its last training step.
  void epoch(const EpochRow& row);

  const EventFile& file() const { return file_; }

 private:
  void addMetrics(const std::string& prefix, const std::vector<std::optional<double>>& values,
                  std::vector<EventFile::Scalar>& scalars) const;

  EventFile file_;
  const std::vector<std::string> metrics_;
  bool hasBegun_ = false;
  std::uint64_t lastStep_ = 0;
};

}  // namespace cleave
