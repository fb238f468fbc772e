// The server's maximum use of the machine's descriptors and memory.
#pragma once

#include <cstddef>
#include <string>

#include "server/config/settings.h"

namespace cleave {

// Raises the soft limit of open files to the hard one. Throws UsageError "too-few-descriptors" if
// the connections and sessions that `settings` allow need more.
void claimDescriptors(const ServerSettings& settings);

// Maximum bytes of freed buffers that the server's pool keeps for reuse.
std::size_t pooledBytes(const ServerSettings& settings);

// The server's maximum memory in bytes. Clients cannot make the server exceed this maximum, except
// with graphs that nothing confines (models.unconfined).
struct MemoryBound {
  std::size_t own = 0;       // for the program and its libraries
  std::size_t sessions = 0;  // for runs, limited by limits.memory_mib, and each session's overhead
  std::size_t connections = 0;  // for connections with their buffers
  std::size_t pool = 0;         // for buffers kept for reuse

  std::size_t total() const { return own + sessions + connections + pool; }
  std::string text() const;
};
MemoryBound memoryBound(const ServerSettings& settings);

}  // namespace cleave
