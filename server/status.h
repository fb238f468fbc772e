// The state of a running server for its operator, as one JSON document: `cleave-server status`
// (docs/cli.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "server/session.h"

namespace cleave {

struct ServerStatus {
  std::string address;
  std::string device;
  bool hasTls = false;
  bool isShuttingDown = false;
  double seconds = 0;           // since it started
  std::size_t connections = 0;  // including those without a session
  std::uint32_t mostSessions = 0;
  std::size_t admittedBytes = 0, mostBytes = 0, residentBytes = 0;
  std::map<std::string, std::uint64_t> refusals;  // by reason
  std::vector<SessionStatus> sessions;
};

// At most 256 sessions, in order of their numbers: the document stays below 256 KiB.
std::string statusJson(ServerStatus status);

}  // namespace cleave
