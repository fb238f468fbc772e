// The server's policy: everything of its configuration. What is trained stands in the clients' run
// specs.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "common/core/config.h"
#include "common/net/connection_options.h"
#include "daemon/metrics.h"
#include "daemon/tls_settings.h"
#include "server/connection_limits.h"

namespace cleave {

// What one identity may use of the server, unless its access file entry says otherwise.
struct ShareSettings {
  std::uint32_t sessions = std::numeric_limits<std::uint32_t>::max();  // at once
  std::uint32_t runsPerHour = 600;
  std::size_t diskBytes = 0;  // of records in the store
  double idleSeconds = 600;   // after which a session whose client does nothing is ended
};

struct ServerSettings {
  std::string address = "127.0.0.1";
  std::uint16_t port = 4800;  // 0: the system chooses
  std::string device = "cpu";
  int threads = 0;  // that a run computes with, and codecs at work at once; 0: all cores
  std::vector<std::string> allowedModels;  // names of the model table
  std::uint32_t maxSessions = 8;
  std::size_t memoryBytes = 0;  // for all sessions together
  ShareSettings share;
  std::size_t diskReserveBytes = 0;  // that stay free on the store's disk
  TlsSettings tls;
  ConnectionLimitSettings connections;
  ConnectionOptions connection;           // its deadlines
  std::chrono::milliseconds drain{7000};  // for steps under way at the end
  double actionSeconds = 60;              // an action that takes longer ends its session
  double codecSeconds = 60;               // encoding or decoding one tensor, likewise
  bool allowWait = false;                 // whether runs may sleep instead of computing
  std::string store = "store";
  std::string accessFile;    // empty: none
  std::string statusSocket;  // a path; empty: none
  bool fetchWeights = true;
  bool allowProbe = true;
  std::uint32_t errorEvery = 100;
  std::size_t rotateBytes = 0;          // of runs' CSV files; 0: never
  std::optional<HttpSettings> metrics;  // where to offer them; nothing: nowhere
  std::string resolved;                 // as YAML
};

// Throws UsageError.
ServerSettings readServerSettings(Config& config);

bool isLoopback(const std::string& address);

}  // namespace cleave
