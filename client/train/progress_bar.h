// Formats training progress as one line of text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace cleave {

struct BarState {
  std::string phase;  // "train" or "eval"
  std::uint64_t step = 0, steps = 0;
  std::uint64_t epoch = 0, epochs = 0;
  std::optional<double> loss;  // none before the first training step
  double samplesPerSecond = 0;
  double up = 0, down = 0;  // bytes per second
  std::optional<double> secondsLeft;
};

// A line for a terminal. It has fewer than `columns` columns; the least important fields are
// dropped first.
//   train  42% [========>           ] 120/300  epoch 2/3  6485 samples/s  loss 0.4312  0:42 left  …
std::string barLine(const BarState& state, std::size_t columns, bool color);
// A line with all fields but no bar, for files and pipes.
std::string plainLine(const BarState& state);
// "120 samples/s", "3.4 samples/s".
std::string sampleRateText(double samplesPerSecond);

// Work on a number of samples.
struct SamplesState {
  std::string phase;  // "check train"
  std::uint64_t done = 0, samples = 0;
  double samplesPerSecond = 0;
};
// Like the functions above.
std::string samplesBarLine(const SamplesState& state, std::size_t columns, bool color);
std::string plainSamplesLine(const SamplesState& state);

}  // namespace cleave
