#include "client/train/samples_progress.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/core/terminal.h"

namespace cleave {

SamplesProgress::SamplesProgress(std::string phase, std::uint64_t samples)
    : state_{std::move(phase), 0, samples, 0}, isLive_(isLiveTerminal(STDERR_FILENO)) {}

SamplesProgress::~SamplesProgress() {
  if (isLive_) StatusLine::instance().clear();
}

void SamplesProgress::show(std::uint64_t done) {
  constexpr double kLiveSeconds = 0.1, kPlainSeconds = 5;
  if (secondsSince(shownAt_) < (isLive_ ? kLiveSeconds : kPlainSeconds)) return;
  shownAt_ = now();
  state_.done = done;
  state_.samplesPerSecond = static_cast<double>(done) / std::max(secondsSince(start_), 1e-9);
  if (isLive_) {
    StatusLine::instance().show(
        STDERR_FILENO,
        samplesBarLine(state_, terminalColumns(STDERR_FILENO), wantsColor(STDERR_FILENO)));
  } else {
    StatusLine::instance().writeAbove(STDERR_FILENO, plainSamplesLine(state_) + "\n");
  }
}

}  // namespace cleave
