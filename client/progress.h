// Shows how a training goes: to people, a bar that rewrites itself on a terminal and a plain line
// every few seconds elsewhere; to programs, a line for each step and epoch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/json_lines.h"
#include "client/progress_bar.h"
#include "common/core/clock.h"
#include "common/pipeline/run_files.h"
#include "common/pipeline/transfers.h"

namespace cleave {

struct ProgressOptions {
  int people = -1;                       // the descriptor that they look at; -1: nobody does
  JsonLines* events = nullptr;           // borrowed; null: no program listens
  std::uint64_t totalSteps = 0;          // of training
  std::vector<std::string> metricNames;  // the first one is the loss
};

class Progress {
 public:
  explicit Progress(ProgressOptions options);
  ~Progress() { end(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  struct State {
    std::uint64_t epoch = 0, epochs = 0;
    std::uint64_t step = 0;     // of training
    std::uint64_t samples = 0;  // trained on so far
    Phase phase = Phase::train;
    // Of this batch.
    std::uint64_t batchSamples = 0;
    double seconds = 0;
    std::vector<std::optional<double>> metrics;
  };
  // After each batch. People see it at most ten times a second.
  void batch(const State& state, const LinkTotals& totals);
  // At an epoch's end; a line that stays.
  void epoch(const EpochRow& row, std::uint64_t epochs);
  // Takes the bar away.
  void end();

 private:
  void show(const State& state, const LinkTotals& totals);
  void measure(const State& state, const LinkTotals& totals, double elapsed);
  void tell(const State& state, const LinkTotals& totals);

  const ProgressOptions options_;
  const bool isLive_;  // people look at a terminal
  const SteadyTime start_ = now();
  std::optional<SteadyTime> shownAt_;
  BarState bar_;  // with means of the last seconds
  bool hasRate_ = false;
  std::uint64_t lastSamples_ = 0, lastUp_ = 0, lastDown_ = 0;
};

}  // namespace cleave
