// What a run has spent. The headline of a report, its figures for papers, and the summary that
// `train` prints have the same numbers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace cleave {

inline constexpr std::size_t kDirections = 2;  // up, down

struct RunTotals {
  double seconds = 0;  // of all processes, without the time between them
  // On the connections: everything, and two parts of it: the tensors, and the answers to a Fetch
  // and the weights that the client sends (the model). The rest is control.
  std::array<double, kDirections> bytes{}, tensors{}, model{};
  std::optional<double> ratio;             // wire bytes divided by raw bytes, of the tensors
  std::optional<double> samplesPerSecond;  // in training

  // Mean bytes of tensors per second, which shows the effect of codecs, unlike the transfer of the
  // model; empty if the seconds are unknown.
  std::optional<double> bandwidth(std::size_t direction) const {
    return seconds > 0 ? std::optional(tensors[direction] / seconds) : std::nullopt;
  }
};

// Counts the rows of a client's steps.csv, for runs that have no summary yet. Like the summary, it
// omits steps that were lost, because the run continued from a checkpoint before them.
class SpentByRows {
 public:
  struct Sums {
    double seconds = 0;
    double rawBytes = 0;
    std::array<double, kDirections> tensors{}, control{};  // on the wire
    Sums& operator+=(const Sums& more);
  };

  void beginProcess(double time);
  // A row at `time`, in seconds; `row` has its bytes.
  void add(double time, const Sums& row);
  // After this step, a checkpoint was made.
  void checkpoint(std::uint64_t step);
  // The process continues after the checkpoint of this step; 0: from the start of the run. If that
  // checkpoint is unknown, no step counts as lost.
  void resume(std::uint64_t step);

  Sums sums() const;

 private:
  struct Mark {
    std::uint64_t step = 0;
    Sums sums;
  };
  Sums before_, process_;       // in earlier processes, and in this one
  std::optional<double> last_;  // time of the previous row of this process
  std::deque<Mark> marks_;      // bounded; a run keeps only its last checkpoints
};

}  // namespace cleave
