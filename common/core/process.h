// The process's resource use, as the kernel counts it.
#pragma once

#include <cstddef>

namespace cleave {

std::size_t residentBytes();      // memory in RAM now
std::size_t peakResidentBytes();  // the most of it so far, in this program
std::size_t dataBytes();          // private writable memory that is mapped: what RLIMIT_DATA counts
double cpuSeconds();              // user and system time of all threads since the process started
double startedAt();               // seconds since 1970, accurate to about 10 ms
std::size_t openDescriptors();

}  // namespace cleave
