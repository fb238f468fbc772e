// The processor time that a benchmark has used.
#pragma once

#include <sys/resource.h>

namespace cleave {

// Of this process, in all its threads, the kernel's work for them included.
inline double processorSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace cleave
