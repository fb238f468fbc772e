// The process's resource use, as the kernel counts it.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace cleave {

std::size_t residentBytes();      // memory in RAM now
std::size_t peakResidentBytes();  // the most of it so far, in this program
std::size_t dataBytes();          // private writable memory that is mapped: what RLIMIT_DATA counts
// Of another process of this user: memory in RAM without files and shared memory; 0: unknown.
std::size_t privateResidentBytes(pid_t process);
double cpuSeconds();  // user and system time of all threads since the process started
double startedAt();   // seconds since 1970, accurate to about 10 ms
std::size_t openDescriptors();

}  // namespace cleave
