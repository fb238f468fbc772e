// Measures the link alone: transfers of several sizes to a server and back, without any
// computation.
#pragma once

#include <cstdint>

#include "client/run/connect.h"
#include "common/link/probe/probe_result.h"

namespace cleave {

struct ProbeOptions {
  // Bytes of the smallest transfer. Each further size is ten times larger.
  std::uint64_t min = 1000;
  std::uint64_t max = 100'000'000;  // bytes of the largest transfer; at most kMaxProbeBytes
  std::uint32_t repeat = 3;         // transfers per size and direction
  double seconds = 20;              // sizes expected to exceed the remaining time are skipped
  double retrySeconds = 30;         // see ClientSession::connect
  double progressSeconds = 60;      // how long to wait without a byte of progress; 0: forever
};

// Runs on the calling thread, in a separate session. Throws RunError or UsageError if there is no
// connection, the server refuses, or the session is lost, and RunError "interrupted" after a
// signal.
ProbeResult probeLink(const ServerAddress& address, const ProbeOptions& options);

}  // namespace cleave
