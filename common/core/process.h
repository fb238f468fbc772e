// What this process takes of its machine, as the kernel counts it.
#pragma once

#include <cstddef>

namespace cleave {

std::size_t residentBytes();  // memory in RAM now
double cpuSeconds();          // of all threads, user and system, since it started
double startedAt();           // seconds since 1970, to within 10 ms or so
std::size_t openDescriptors();

}  // namespace cleave
