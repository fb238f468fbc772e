// How much memory this process can still get.
#pragma once

#include <cstdint>

namespace cleave {

// Bytes: the least of what the machine has available, what the process's cgroup (such as a
// container) has left, and what RLIMIT_AS leaves. An estimate, because other processes also take
// memory. The maximum of the type if nothing is known.
std::uint64_t availableMemory();

}  // namespace cleave
