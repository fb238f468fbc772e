// The process's resource use, as the kernel counts it.
#pragma once

#include <cstddef>

namespace cleave {

std::size_t residentBytes();  // memory in RAM now
double cpuSeconds();          // of all threads, user and system, since it started
double startedAt();           // seconds since 1970, accurate to about 10 ms
std::size_t openDescriptors();

}  // namespace cleave
