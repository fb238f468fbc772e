// Measures the processor time of a benchmark.
#pragma once

#include <sys/resource.h>

namespace cleave {

// Seconds of this process, in all its threads, including kernel time.
inline double processorSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace cleave
