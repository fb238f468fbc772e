// Takes from this process all that a stage does not need, for good. In the order in which a process
// that was forked from the stage server calls them.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>

namespace cleave {

// Ends this process when `parent`, whose main thread must have forked it, ends; closes all
// descriptors except `kept`; lets it end first if memory is short; forbids core dumps, files and
// other processes' access. Throws std::system_error if the kernel refuses a part.
void leaveParent(pid_t parent, std::span<const int> kept);

// Starts the threads that LibTorch uses for computing. Threads cannot be started after confine().
void startComputeThreads(int threads);

// From now on, this process may allocate `bytes` more, start no threads, and make no system calls
// except those for computing and for reading and writing open descriptors. A forbidden call ends it
// with SIGSYS. Throws std::system_error.
void confine(std::size_t bytes);

}  // namespace cleave
