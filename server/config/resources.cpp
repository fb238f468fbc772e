#include "server/config/resources.h"

#include <sys/resource.h>

#include <algorithm>

#include "common/core/error.h"
#include "common/core/process.h"
#include "common/core/units.h"
#include "common/files/record.h"
#include "common/replicas/group_channel.h"
#include "common/replicas/group_connection.h"
#include "common/resources/buffer.h"

namespace cleave {
namespace {

// Memory of a connection before its Hello: objects, coroutines, a read buffer of 4 KiB, 4 KiB of a
// Hello. Measured: 13 KiB.
constexpr std::size_t kConnectionBytes = std::size_t{32} << 10;
// Memory of such a connection with TLS, including OpenSSL's buffers. Measured: 65 KiB.
constexpr std::size_t kTlsConnectionBytes = std::size_t{96} << 10;
// A session's memory that admission does not count: 64 KiB of metadata, a probe's segment, queued
// frames, records not yet written.
constexpr std::size_t kSessionBytes = 4 * kMiB;
// Working memory that libraries allocate at their first use, and keep.
constexpr std::size_t kLibraryBytes = 64 * kMiB;
// Rows waiting for a slow disk, in strings that double as they grow.
constexpr std::size_t kRecordBytes = 3 * Recorder::kMaxWaitingBytes;

constexpr std::size_t kOwnDescriptors = 64;            // listening, event queues, libraries, GPU
constexpr std::size_t kDescriptorsPerSession = 8 + 5;  // records, checkpoints; stage's process
// Of a session's group of replicas. Per replica: a connection of Gloo and, on replica 0, one of the
// group. Per group: this replica's own connection, and Gloo's port and event queue.
constexpr std::size_t kDescriptorsPerReplica = 2;
constexpr std::size_t kDescriptorsPerGroup = 8;

std::size_t descriptorsPerSession(const ServerSettings& settings) {
  if (!settings.replicas) return kDescriptorsPerSession;
  return kDescriptorsPerSession + kDescriptorsPerGroup +
         kDescriptorsPerReplica * settings.replicas->count();
}

std::size_t sessionBytes(const ServerSettings& settings) {
  if (!settings.replicas) return kSessionBytes;
  return kSessionBytes + kMaxGroupBytes + kMaxQueuedBytes * settings.replicas->count();
}

}  // namespace

void claimDescriptors(const ServerSettings& settings) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  const std::size_t needed = kOwnDescriptors + settings.connections.connections +
                             descriptorsPerSession(settings) * settings.maxSessions;
  if (needed <= limit.rlim_max) return;
  throw UsageError("too-few-descriptors",
                   "limits.connections is " + std::to_string(settings.connections.connections) +
                       " and limits.sessions " + std::to_string(settings.maxSessions) +
                       ", which requires " + std::to_string(needed) +
                       " open files; this process may have " + std::to_string(limit.rlim_max),
                   "raise the limit (ulimit -n, or LimitNOFILE= in a systemd unit), or lower "
                   "limits.connections");
}

std::size_t pooledBytes(const ServerSettings& settings) {
  return std::min(BufferPool::kMaxRetained, settings.memoryBytes);
}

MemoryBound memoryBound(const ServerSettings& settings) {
  MemoryBound bound;
  bound.own = residentBytes() + kLibraryBytes + kRecordBytes;
  bound.sessions = settings.memoryBytes + sessionBytes(settings) * settings.maxSessions;
  bound.connections = (settings.tls.enabled ? kTlsConnectionBytes : kConnectionBytes) *
                      settings.connections.connections;
  bound.pool = pooledBytes(settings);
  return bound;
}

std::string MemoryBound::text() const {
  return mebibytesText(total()) + " of memory at most: " + mebibytesText(sessions) +
         " for sessions, " + mebibytesText(connections) + " for connections, " +
         mebibytesText(pool) + " for pooled buffers, " + mebibytesText(own) +
         " for the program itself";
}

}  // namespace cleave
