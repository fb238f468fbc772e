// The server's settings: its whole configuration. The clients' run specs define what is trained.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "common/config/config_table.h"
#include "common/core/endpoint.h"
#include "common/net/connection_options.h"
#include "common/run/metrics.h"
#include "common/run/tls_settings.h"
#include "server/config/connection_limits.h"

namespace cleave {

// Limits per identity, unless its entry in the access file says otherwise.
struct ShareSettings {
  std::uint32_t sessions = std::numeric_limits<std::uint32_t>::max();  // maximum sessions at once
  std::uint32_t runsPerHour = 600;
  std::size_t diskBytes = std::size_t{64} << 30;  // for records in the store
  double idleSeconds = 600;                       // idle time after which a session is ended
};

// The group of servers that compute a body together.
struct ReplicaSettings {
  std::vector<std::string> hosts;  // HOST:PORT of each, by rank
  std::uint32_t rank = 0;          // of this server
  bool isPrivate = false;          // whether the hosts may be other than loopback
  std::chrono::seconds timeout{30};

  std::uint32_t count() const { return static_cast<std::uint32_t>(hosts.size()); }
};

// How to reach clients through a relay.
struct DialSettings {
  Endpoint relay;
  std::string secretFile;
};

// Direct links to other servers, for runs with several servers.
struct EdgeSettings {
  std::vector<Endpoint> allow;  // servers that this one may connect to
  bool isAccepting = false;     // whether other servers may connect
  std::string folder;           // with the certificate for connecting; needed with TLS
};

struct ServerSettings {
  std::string address = "127.0.0.1";
  std::uint16_t port = 4800;                // 0: the system chooses
  std::optional<DialSettings> dial;         // empty: clients connect directly
  std::optional<ReplicaSettings> replicas;  // empty: none
  EdgeSettings edges;
  std::string device = "cpu";
  int threads = 0;  // per run for computing, and maximum codec tasks at a time; 0: all cores
  std::vector<std::string> allowedModels;  // names of the model table
  bool namesModels = false;                // whether the configuration names the allowed models
  bool allowsUnconfined = false;           // graphs may run in a process that is not confined
  // Why nothing confines the graphs that this server computes; empty: they are confined, or are not
  // allowed. Not a key: serve() sets it.
  std::string unconfined;
  std::uint32_t maxSessions = 8;
  std::size_t memoryBytes = std::size_t{8} << 30;  // maximum memory of all sessions together
  ShareSettings share;
  bool samplesOnDisk = false;  // whether the samples that codecs keep are in files in the store
  std::size_t diskReserveBytes = std::size_t{512} << 20;  // kept free on the store's disk
  TlsSettings tls;
  ConnectionLimitSettings connections;
  ConnectionOptions connection;             // deadlines of connections
  std::chrono::milliseconds drain{7000};    // time to finish current steps at shutdown
  std::chrono::milliseconds park{300'000};  // how long a run whose connection broke is kept
  double actionSeconds = 60;                // a longer action ends its session
  double codecSeconds = 60;  // a longer encoding or decoding of one tensor ends its session
  std::string logFormat = "text";
  std::string store = "store";
  std::string accessFile;    // empty: none
  std::string statusSocket;  // a path; empty: none
  bool fetchWeights = true;
  // Maximum size of stored initial weights per identity; 0: none.
  std::size_t keepWeightsBytes = std::size_t{2} << 30;
  bool allowCheckpoints = true;
  bool keepFinished = true;  // whether to keep the last checkpoint of a run that is done
  bool allowProbe = true;
  bool keepUsage = true;         // whether the store has the account of usage
  bool labelIdentities = false;  // whether metrics have labels with identities
  std::uint32_t errorEvery = 100;
  std::size_t rotateBytes = 0;          // rotation size of runs' CSV files; 0: never
  std::optional<HttpSettings> metrics;  // address of the metrics endpoint; empty: none
  std::string resolved;                 // the resolved configuration as YAML
};

// The keys of the server's configuration; the same object on every call.
const ConfigTable<ServerSettings>& serverKeys();

// Throws UsageError.
ServerSettings readServerSettings(Config& config);

// What ServerSettings::unconfined means, a sentence for the log.
std::string unconfinedText(const std::string& why);

}  // namespace cleave
