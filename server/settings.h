// The server's policy: everything of its configuration. What is trained stands in the clients' run
// specs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/core/config.h"
#include "common/net/connection_options.h"
#include "daemon/metrics.h"
#include "daemon/tls_settings.h"
#include "server/connection_limits.h"

namespace cleave {

struct ServerSettings {
  std::string address = "127.0.0.1";
  std::uint16_t port = 4800;  // 0: the system chooses
  std::string device = "cpu";
  int threads = 0;                         // most that a run computes with; 0: all cores
  std::vector<std::string> allowedModels;  // names of the model table
  std::uint32_t maxSessions = 8;
  std::size_t memoryBytes = 0;  // for all sessions together
  TlsSettings tls;
  ConnectionLimitSettings connections;
  ConnectionOptions connection;           // its deadlines
  std::chrono::milliseconds drain{7000};  // for steps under way at the end
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
