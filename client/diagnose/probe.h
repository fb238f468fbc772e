// Measures the link alone: transfers of several sizes to a server and back, without any
// computation.
#pragma once

#include <cstdint>

#include "client/train/connect.h"
#include "common/link/probe_result.h"

namespace cleave {

struct ProbeOptions {
  std::uint64_t min = 1000;         // bytes; each further size is ten times larger
  std::uint64_t max = 100'000'000;  // at most kMaxProbeBytes
  std::uint32_t repeat = 3;         // per size and direction
  double seconds = 20;              // sizes expected to exceed the remaining time are skipped
  double retrySeconds = 30;         // see ClientSession::connect
};

// Runs on the calling thread, in its own session. Throws RunError or UsageError: no connection, the
// server's refusal, a lost session, or a signal ("interrupted").
ProbeResult probeLink(const ServerAddress& address, const ProbeOptions& options);

}  // namespace cleave
