// Steady-clock time; durations in seconds.
#pragma once

#include <chrono>

namespace cleave {

using SteadyTime = std::chrono::steady_clock::time_point;

inline SteadyTime now() { return std::chrono::steady_clock::now(); }
inline double secondsBetween(SteadyTime start, SteadyTime end) {
  return std::chrono::duration<double>(end - start).count();
}
inline double secondsSince(SteadyTime start) { return secondsBetween(start, now()); }

}  // namespace cleave
