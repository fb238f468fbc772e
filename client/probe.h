// Measures a link alone: how long transfers of several sizes take to a server and back, with
// nothing computed at either end.
#pragma once

#include <cstdint>

#include "client/connect.h"
#include "common/pipeline/probe_result.h"

namespace cleave {

struct ProbeOptions {
  std::uint64_t least = 1000;        // bytes; then ten times as many, until
  std::uint64_t most = 100'000'000;  // at most kMaxProbeBytes
  std::uint32_t repeat = 3;          // of each size and way
  double seconds = 20;               // sizes expected to take longer than is left are skipped
  double retrySeconds = 30;          // as ClientSession::connect
};

// Works on the calling thread, in a session of its own. Throws RunError or UsageError: no
// connection, the server's refusal, its end, or a signal ("interrupted").
ProbeResult probeLink(const ServerAddress& address, const ProbeOptions& options);

}  // namespace cleave
