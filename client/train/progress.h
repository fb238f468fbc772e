// Shows the progress of a training run. On a terminal this is a bar that updates in place; in a
// file or pipe, a line every few seconds; for programs, an event per step and per epoch.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/train/json_lines.h"
#include "client/train/progress_bar.h"
#include "common/core/clock.h"
#include "common/link/transfers.h"
#include "common/record/run_files.h"

namespace cleave {

struct ProgressOptions {
  int people = -1;                       // descriptor for progress text; -1: no text
  JsonLines* events = nullptr;           // borrowed; null: no events
  std::uint64_t totalSteps = 0;          // training steps
  std::vector<std::string> metricNames;  // the first is the loss
  std::set<std::string> shares = {};     // metrics that are shown as percentages
  std::set<std::string> hidden = {};     // metrics that only the events have
};

class Progress {
 public:
  explicit Progress(ProgressOptions options);
  ~Progress() { end(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  struct State {
    std::uint64_t epoch = 0, epochs = 0;
    std::uint64_t step = 0;     // training step
    std::uint64_t samples = 0;  // samples trained so far
    Phase phase = Phase::train;
    // The following members describe the current batch.
    std::uint64_t batchSamples = 0;
    double seconds = 0;
    std::vector<std::optional<double>> metrics;
    std::optional<double> learningRate, gradientNorm;  // only for training steps
  };
  // Call before the first batch of a run that resumes. Earlier steps and samples then do not count
  // towards the rate and the remaining time.
  void resume(std::uint64_t step, std::uint64_t samples);
  // Call after each batch. Updates the terminal at most ten times per second.
  void batch(const State& state, const LinkTotals& totals);
  // Call at the end of each epoch. Prints a permanent line.
  void epoch(const EpochRow& row, std::uint64_t epochs);
  // Removes the bar.
  void end();

 private:
  void show(const State& state, const LinkTotals& totals);
  void measure(const State& state, const LinkTotals& totals, double elapsed);
  void printEvent(const State& state, const LinkTotals& totals);

  const ProgressOptions options_;
  const bool isLive_;  // whether the descriptor is a terminal
  const SteadyTime start_ = now();
  std::optional<SteadyTime> shownAt_;
  BarState bar_;  // its rates are means over the last few seconds
  bool hasRate_ = false;
  std::uint64_t firstStep_ = 0;  // the step after which this process began
  std::uint64_t lastSamples_ = 0, lastUp_ = 0, lastDown_ = 0;
};

}  // namespace cleave
