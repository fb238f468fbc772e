#include "client/train/progress_bar.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <vector>

#include "common/core/units.h"

namespace cleave {
namespace {

constexpr std::size_t kLongestBar = 40;
constexpr std::size_t kShortestBar = 10;
constexpr std::size_t kBrackets = 3;  // two brackets and the space before them

double shareOf(std::uint64_t done, std::uint64_t all) {
  return all == 0 ? 1 : std::min(1.0, static_cast<double>(done) / static_cast<double>(all));
}

std::string barText(double share, std::size_t length) {
  const auto done = static_cast<std::size_t>(share * static_cast<double>(length));
  std::string bar(done, '=');
  if (done < length) bar += '>';
  bar.resize(length, ' ');
  return " [" + bar + "]";
}

std::string leftText(const std::optional<double>& seconds) {
  return (seconds ? clockText(*seconds) : "?") + " left";
}

std::string leftText(const SamplesState& state) {
  std::optional<double> seconds;
  if (state.samplesPerSecond > 0) {
    seconds = static_cast<double>(state.samples - state.done) / state.samplesPerSecond;
  }
  return leftText(seconds);
}

// "12/300", with the first number as wide as the second.
std::string countOf(std::uint64_t done, std::uint64_t all) {
  return fmt::format("{:>{}}/{}", done, std::to_string(all).size(), all);
}

std::string lossText(const BarState& state) {
  return state.loss ? fmt::format("  loss {:.4f}", *state.loss) : "";
}

struct Field {
  std::string text;
  int rank;  // fields of higher rank are dropped first
};

// The fields' ranks are 1, 2, … in any order.
std::string lineOf(const std::string& name, double share, const std::vector<Field>& fields,
                   std::size_t columns, bool color) {
  // The last column stays free, because some terminals wrap when it is used.
  const std::size_t room = columns > 0 ? columns - 1 : 0;
  const std::string percent = fmt::format(" {:3.0f}%", 100 * share);

  std::size_t used = name.size() + percent.size();
  int min = 0;  // rank of the last field that fits
  const auto lengthTo = [&](int rank) {
    std::size_t length = 0;
    for (const Field& field : fields) length += field.rank <= rank ? field.text.size() : 0;
    return length;
  };
  for (int rank = 1; rank <= static_cast<int>(fields.size()); ++rank) {
    if (used + kBrackets + kShortestBar + lengthTo(rank) <= room) min = rank;
  }
  used += lengthTo(min);

  std::string rest = percent;
  if (used + kBrackets + kShortestBar <= room) {
    rest += barText(share, std::min(kLongestBar, room - used - kBrackets));
  }
  for (const Field& field : fields) {
    if (field.rank <= min) rest += field.text;
  }
  const std::string phase = name.substr(0, room);
  rest.resize(std::min(rest.size(), room - phase.size()));
  return (color ? "\x1b[1;32m" + phase + "\x1b[0m" : phase) + rest;
}

}  // namespace

std::string sampleRateText(double samplesPerSecond) {
  const bool isSlow = samplesPerSecond > 0 && samplesPerSecond < 10;
  return fmt::format("{:.{}f} samples/s", samplesPerSecond, isSlow ? 1 : 0);
}

std::string barLine(const BarState& state, std::size_t columns, bool color) {
  return lineOf(state.phase, shareOf(state.step, state.steps),
                {{" " + countOf(state.step, state.steps), 3},
                 {fmt::format("  epoch {}/{}", state.epoch, state.epochs), 2},
                 {"  " + sampleRateText(state.samplesPerSecond), 5},
                 {lossText(state), 4},
                 {"  " + leftText(state.secondsLeft), 1},
                 {fmt::format("  up {}/s", bytesText(state.up)), 6},
                 {fmt::format("  down {}/s", bytesText(state.down)), 7}},
                columns, color);
}

std::string samplesBarLine(const SamplesState& state, std::size_t columns, bool color) {
  return lineOf(state.phase, shareOf(state.done, state.samples),
                {{" " + countOf(state.done, state.samples), 2},
                 {"  " + sampleRateText(state.samplesPerSecond), 3},
                 {"  " + leftText(state), 1}},
                columns, color);
}

std::string plainLine(const BarState& state) {
  return fmt::format("{}  step {}/{}  epoch {}/{}  {}{}  up {}/s  down {}/s  {}", state.phase,
                     state.step, state.steps, state.epoch, state.epochs,
                     sampleRateText(state.samplesPerSecond), lossText(state), bytesText(state.up),
                     bytesText(state.down), leftText(state.secondsLeft));
}

std::string plainSamplesLine(const SamplesState& state) {
  return fmt::format("{}  {}/{}  {}  {}", state.phase, state.done, state.samples,
                     sampleRateText(state.samplesPerSecond), leftText(state));
}

}  // namespace cleave
