#include "client/progress.h"

#include <spdlog/fmt/fmt.h>

#include <cmath>
#include <ostream>

namespace cleave {
namespace {

constexpr double kTerminalEvery = 0.2;  // seconds
constexpr double kPlainEvery = 5;
constexpr double kMegabyte = 1e6;

}  // namespace

std::string timeText(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(std::max(0.0, seconds)));
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

Progress::Progress(std::ostream& out, bool isTerminal, std::uint64_t totalSteps)
    : out_(out), isTerminal_(isTerminal), totalSteps_(totalSteps), lastShown_(start_) {}

void Progress::update(const State& state, const LinkTotals& totals) {
  const double elapsed = secondsSince(lastShown_);
  if (elapsed < (isTerminal_ ? kTerminalEvery : kPlainEvery)) return;
  const double imagesPerSecond = static_cast<double>(state.samples - lastState_.samples) / elapsed;
  const double up = static_cast<double>(totals.up() - lastTotals_.up()) / elapsed / kMegabyte;
  const double down = static_cast<double>(totals.down() - lastTotals_.down()) / elapsed / kMegabyte;
  std::string left = "?";
  if (state.step > 0) {
    const double perStep = secondsSince(start_) / static_cast<double>(state.step);
    left = timeText(perStep * static_cast<double>(totalSteps_ - state.step));
  }
  const std::string text = fmt::format(
      "epoch {}/{}  step {}/{}  {}  loss {:.4f}  {:.0f} images/s  up {:.1f} MB/s  down {:.1f} MB/s "
      " {} left",
      state.epoch, state.epochs, state.step, totalSteps_, state.what, state.loss, imagesPerSecond,
      up, down, left);
  if (isTerminal_) {
    clear();
    out_ << text << std::flush;
    width_ = text.size();
  } else {
    out_ << text << std::endl;
  }
  lastShown_ = now();
  lastState_ = state;
  lastTotals_ = totals;
}

void Progress::line(const std::string& text) {
  clear();
  out_ << text << std::endl;
}

void Progress::clear() {
  if (width_ == 0) return;
  out_ << '\r' << std::string(width_, ' ') << '\r';
  width_ = 0;
}

}  // namespace cleave
