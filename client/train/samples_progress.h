// Shows the progress of work on samples on stderr: on a terminal a bar, otherwise a line every few
// seconds.
#pragma once

#include <optional>
#include <string>

#include "client/train/progress_bar.h"
#include "common/core/clock.h"

namespace cleave {

class SamplesProgress {
 public:
  SamplesProgress(std::string phase, std::uint64_t samples);
  ~SamplesProgress();  // removes the bar
  SamplesProgress(const SamplesProgress&) = delete;
  SamplesProgress& operator=(const SamplesProgress&) = delete;

  void show(std::uint64_t done);

 private:
  SamplesState state_;
  const bool isLive_;
  const SteadyTime start_ = now();
  SteadyTime shownAt_ = start_;
};

}  // namespace cleave
