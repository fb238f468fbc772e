// The state of a running server as a JSON document, for `cleave-server status` (docs/cli.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/status/throughput_meter.h"

namespace cleave {

// The values of a session that `cleave-server status` shows.
struct SessionStatus {
  std::uint64_t number = 0;
  std::string identity;
  std::string peer;
  double seconds = 0;           // since it connected
  std::string kind;             // Session::kind()
  std::string run;              // the run id; empty: a probe
  std::string model;            // empty: a probe
  std::size_t memoryBytes = 0;  // admitted
  // Of the run's own process; 0: unknown, or the server computes the body.
  std::size_t residentBytes = 0;
  std::uint64_t epoch = 0;
  std::optional<Throughput> pace;
  // The cohort of the client, and its name there; empty: it is in none.
  std::string cohort, member;
  std::uint32_t samples = 0;                 // the member's training samples
  std::uint64_t bytesUp = 0, bytesDown = 0;  // of the member, since the run has begun or continued
  double lateSeconds = 0;  // how long another member has waited for this one, in all steps
  std::vector<std::string> waitsFor;  // the members for which the whole cohort waits
};

struct ServerStatus {
  std::string address;
  std::string device;
  bool hasTls = false;
  std::string unconfined;  // see ServerSettings
  bool isShuttingDown = false;
  double seconds = 0;           // since it started
  std::size_t connections = 0;  // including those without a session
  std::uint32_t maxSessions = 0;
  std::size_t admittedBytes = 0, maxBytes = 0, residentBytes = 0;
  std::map<std::string, std::uint64_t> refusals;  // by reason
  std::vector<SessionStatus> sessions;
};

// Lists at most 256 sessions, in order of their numbers, so that the document stays below 256 KiB.
std::string statusJson(ServerStatus status);

}  // namespace cleave
