#include "server/config/settings.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <set>

#include "common/core/endpoint.h"
#include "common/model/model.h"
#include "common/net/streams/connect_to.h"
#include "common/run/config_errors.h"
#include "common/run/device.h"
#include "common/run/run_folder.h"
#include "common/topology/step.h"
#include "server/access/access.h"

namespace cleave {
namespace {

std::vector<std::string> defaultModels() {
  std::vector<std::string> names;
  for (const ModelRow& row : modelTable()) {
    if (!row.isForBenchmarks) names.emplace_back(row.name);
  }
  return names;
}

// The socket has its own folder, so that access to that folder can be restricted to its owner.
std::string readStatusSocket(Config& config, const std::string& store) {
  const std::string path = config.text("status.socket", "");
  if (path == "off") return "";
  return path.empty() ? store + "/.status/socket" : path;
}

// Accepts an IPv6 address with or without brackets.
void readAddress(Config& config, ServerSettings& settings) {
  const std::string written = config.text("listen.address", settings.address);
  const bool isBracketed = written.starts_with('[') && written.ends_with(']');
  settings.address = isBracketed ? written.substr(1, written.size() - 2) : written;
  boost::system::error_code error;
  boost::asio::ip::make_address(settings.address, error);
  if (!error) return;
  const std::string sentence = config.where("listen.address") + ": listen.address is '" + written +
                               "', which is not an IP address";
  const std::size_t colon = written.rfind(':');
  if (colon != std::string::npos && written.find('/') == std::string::npos) {
    throw UsageError(
        "bad-config", sentence + " alone",
        "set the port apart from it: --set listen.address=" + written.substr(0, colon) +
            " --set listen.port=" + written.substr(colon + 1));
  }
  throw UsageError("bad-config", sentence,
                   "use 127.0.0.1 for this machine alone, 0.0.0.0 or :: for all interfaces, or the "
                   "address of one of them");
}

void readDial(Config& config, ServerSettings& settings) {
  const std::string relay = config.text("dial.relay", "");
  const std::string secret = config.text("dial.secret", "");
  if (relay.empty()) return;
  const std::string place = config.where("dial.relay") + ": dial.relay";
  settings.dial = DialSettings{parseEndpoint({place, relay}, 1), secret};
  if (!secret.empty()) return;
  throw UsageError("no-secret", place + ": dial.secret is missing",
                   "set dial.secret to a copy of the relay's file --secret");
}

void readEdges(Config& config, ServerSettings& settings) {
  const std::string place = config.where("edges.allow") + ": edges.allow";
  for (const std::string& each : config.texts("edges.allow", std::vector<std::string>{})) {
    const Endpoint address = parseEndpoint({place, each}, 1);
    settings.edges.allow.push_back(address);
    if (settings.tls.enabled || isLoopbackHost(address.host)) continue;
    throw UsageError("unsafe-edge",
                     place + ": connecting to " + each +
                         " without TLS would let anyone on the way read and change the tensors",
                     "set tls.enabled, or use a loopback address");
  }
}

// This traffic is neither encrypted nor, beyond a token, authenticated.
void refusePublicHost(Config& config, const std::string& host) {
  if (isLoopbackHost(host)) return;
  throw UsageError("unsafe-replicas",
                   config.where("replicas.hosts") + ": replicas.hosts has " + host +
                       ", but replicas exchange gradients without encryption",
                   "use a network that no other machine can reach, and set replicas.private: true");
}

void readReplicas(Config& config, ServerSettings& settings) {
  ReplicaSettings replicas;
  replicas.hosts = config.texts("replicas.hosts", std::vector<std::string>{});
  replicas.rank = static_cast<std::uint32_t>(
      config.integer("replicas.rank", 0, kMaxBodyReplicas - 1, replicas.rank));
  replicas.isPrivate = config.boolean("replicas.private", replicas.isPrivate);
  replicas.timeout = std::chrono::seconds(
      config.integer("replicas.timeout_seconds", 1, 3600, replicas.timeout.count()));
  if (replicas.hosts.empty()) {
    if (replicas.rank == 0 && !replicas.isPrivate) return;
    const std::string key = replicas.rank > 0 ? "replicas.rank" : "replicas.private";
    throw UsageError("bad-config",
                     config.where(key) + ": " + key + " has no effect without replicas.hosts",
                     "set replicas.hosts, or remove this key");
  }
  const std::string place = config.where("replicas.hosts") + ": replicas.hosts";
  const std::set<std::string> different(replicas.hosts.begin(), replicas.hosts.end());
  if (replicas.count() < 2 || replicas.count() > kMaxBodyReplicas ||
      replicas.rank >= replicas.count() || different.size() < replicas.count()) {
    throw UsageError(
        "bad-config",
        fmt::format("{} lists {}, of which {} different, and replicas.rank is {}", place,
                    countText(replicas.count(), "server"), different.size(), replicas.rank),
        fmt::format("list the addresses of all 2…{} replicas, and set replicas.rank to "
                    "this server's position, from 0",
                    kMaxBodyReplicas));
  }
  for (const std::string& host : replicas.hosts) {
    const Endpoint endpoint = parseEndpoint({place, host}, 1);
    if (!replicas.isPrivate) refusePublicHost(config, endpoint.host);
  }
  settings.replicas = std::move(replicas);
}

ConfigTable<ServerSettings> makeTable() {
  using Settings = ServerSettings;
  constexpr int kMaxSessions = 10000;
  constexpr int kMaxConnections = 1 << 20;
  ConfigTable<Settings> table;
  table.section("Server");
  table.add("listen.address", "IP address", "", "`" + Settings{}.address + "`",
            "an address other than loopback needs `tls.enabled`; `::` listens on all IPv6 and, if "
            "the system allows it, all IPv4 addresses",
            readAddress);
  table.integer("listen.port", "", 0, 65535, &Settings::port,
                "0: the system chooses, and the first line on stdout shows the port");
  table.add("dial.relay", "`HOST:PORT`", "", "none",
            "also serves clients through the `cleave-relay` at this address, for a server behind "
            "NAT: [fleet.md](fleet.md#a-server-behind-nat)",
            readDial);
  table.add("dial.secret", "path", "", "none",
            "file with the secret of that relay; only its owner may read it", nullptr);
  table.add(
      "replicas.hosts", "list of `HOST:PORT`", "", "`[]`",
      "addresses at which the servers that compute a body together exchange its gradients, in "
      "rank order: [replicas](configuration.md#replicas)",
      readReplicas);
  table.add("replicas.rank", integerType(0, kMaxBodyReplicas - 1), "", "`0`",
            "position of this server in `replicas.hosts`", nullptr);
  table.add("replicas.private", "boolean", "", "`false`",
            "allows `replicas.hosts` other than loopback: this traffic is unencrypted, so no other "
            "machine may reach their network",
            nullptr);
  table.add("replicas.timeout_seconds", integerType(1, 3600), "s", "`30`",
            "how long a replica may take to join a run's group, and how long it may be silent "
            "before it counts as lost",
            nullptr);
  table.boolean(
      "tls.enabled", [](Settings & s) -> auto& { return s.tls.enabled; },
      "TLS 1.3; clients need a certificate");
  table.text(
      "tls.folder", "path", [](Settings & s) -> auto& { return s.tls.folder; },
      "folder with `ca.crt`, `server.crt`, `server.key`, `revoked.crl`; SIGHUP reloads them");
  table.add("edges.allow", "list of `HOST:PORT`", "", "`[]`",
            "servers that this one may connect to, for runs with [direct "
            "links](#direct-links-between-servers) between servers",
            readEdges);
  table.boolean(
      "edges.accept", [](Settings & s) -> auto& { return s.edges.isAccepting; },
      "whether other servers may connect to this one, for such runs");
  table.add("edges.folder", "path", "", "`tls.folder`",
            "folder with `ca.crt`, `client.crt`, `client.key`, with which this server connects to "
            "those in `edges.allow` if TLS is enabled",
            [](Config& config, Settings& s) {
              s.edges.folder = config.text("edges.folder", s.tls.folder);
              if (s.edges.folder.empty()) s.edges.folder = s.tls.folder;
            });
  table
      .text("device", "`cpu`, `cuda`, `cuda:N`", &Settings::device,
            "device for the bodies; see [GPUs](#gpus)")
      .then([](Config& config, Settings& s) {
        checkAt(config, "device", [&] { checkDeviceName(s.device); });
      });
  table.integer("threads", "", 0, 1024, &Settings::threads,
                "maximum compute threads per run, and maximum sessions whose codecs run at the "
                "same time; 0: all usable cores");
  table.add(
      "models.allow", "list of strings", "",
      "all models except `sleep`; `graph` only if the processes that compute runs are confined",
      "names of the models that runs may use; `graph` lets clients run any operators of the "
      "list in [models.md](models.md)",
      [](Config& config, Settings& s) {
        s.namesModels = config.has("models.allow");
        s.allowedModels = config.texts("models.allow", defaultModels());
        checkAt(config, "models.allow", [&] {
          for (const std::string& name : s.allowedModels) findModel(name);
        });
      });
  table.boolean("models.unconfined", &Settings::allowsUnconfined,
                "allow `graph` although nothing confines the process that computes a run: on a "
                "GPU, or if the kernel refuses it; only if you trust all clients");
  table.integer("limits.sessions", "", 1, kMaxSessions, &Settings::maxSessions,
                "maximum sessions at the same time");
  table.mebibytes("limits.memory_mib", 1, 1 << 24, &Settings::memoryBytes,
                  "maximum memory of all sessions together, estimated before a run starts; on a "
                  "GPU at most the GPU's memory");
  table.add("limits.sessions_per_identity", integerType(0, kMaxSessions), "", "`0`",
            "maximum sessions of one identity at the same time, including probes and trials; 0: "
            "half of `limits.sessions` with TLS; all of them without TLS, because then all clients "
            "share one identity",
            [](Config& config, Settings& s) {
              const auto sessions = static_cast<std::uint32_t>(
                  config.integer("limits.sessions_per_identity", 0, kMaxSessions, 0));
              const std::uint32_t half = std::max(1u, s.maxSessions / 2);
              s.share.sessions = sessions > 0 ? sessions : s.tls.enabled ? half : s.maxSessions;
            });
  table.number(
      "limits.idle_seconds", "s", 1, kMaxIdleSeconds,
      [](Settings & s) -> auto& { return s.share.idleSeconds; },
      "ends a session whose client is idle for this long, apart from answering Pings; time spent "
      "waiting for the server does not count");
  table.integer(
      "limits.runs_per_hour", "", 1, kMaxRunsPerHour,
      [](Settings & s) -> auto& { return s.share.runsPerHour; },
      "maximum runs that one identity may start per hour");
  table.mebibytes(
      "limits.disk_mib", 1, kMaxDiskMiB, [](Settings & s) -> auto& { return s.share.diskBytes; },
      "maximum size of one identity's records and kept samples in the store");
  table.mebibytes("limits.disk_reserve_mib", 0, kMaxDiskMiB, &Settings::diskReserveBytes,
                  "space that stays free on the store's disk; one identity gets at most half of "
                  "the free space beyond it");
  table.add("limits.connections", fmt::format("integer, `limits.sessions` … {}", kMaxConnections),
            "", fmt::format("`{}`", ConnectionLimitSettings{}.connections),
            "maximum open connections, with or without a session", [](Config& config, Settings& s) {
              std::uint32_t& connections = s.connections.connections;
              connections = static_cast<std::uint32_t>(
                  config.integer("limits.connections", s.maxSessions, kMaxConnections,
                                 std::max(connections, s.maxSessions)));
            });
  table.integer(
      "limits.connections_per_address", "", 1, kMaxConnections,
      [](Settings & s) -> auto& { return s.connections.connectionsPerAddress; },
      "maximum open connections from one address (IPv6: from one /64)");
  table.number(
      "limits.handshakes", "1/s", 1, 1e6,
      [](Settings & s) -> auto& { return s.connections.perSecond; },
      "maximum new connections per second");
  table.number(
      "limits.handshakes_burst", "", 1, 1e6,
      [](Settings & s) -> auto& { return s.connections.burst; },
      "maximum burst of new connections after a quiet period");
  table.number(
      "limits.handshakes_per_address", "1/s", 0.1, 1e6,
      [](Settings & s) -> auto& { return s.connections.perSecondPerAddress; },
      "maximum new connections per second from one address");
  table.seconds(
      "limits.tls_seconds", 0.1, 60, [](Settings & s) -> auto& { return s.connection.tlsDeadline; },
      "deadline of the TLS handshake");
  table.seconds(
      "limits.hello_seconds", 0.1, 60,
      [](Settings & s) -> auto& { return s.connection.helloDeadline; },
      "deadline of a client's first message");
  table.seconds(
      "limits.frame_seconds", 0.1, 600,
      [](Settings & s) -> auto& { return s.connection.frame.grace; },
      "a frame that takes longer than this must arrive at `limits.frame_kib_per_second` or faster");
  constexpr double kKiB = 1024;
  const double frameRate = ConnectionOptions{}.frame.bytesPerSecond / kKiB;
  table.add("limits.frame_kib_per_second", numberType(0.1, 1 << 20), "KiB/s",
            defaultText(frameRate),
            "minimum rate of a frame that takes longer than `limits.frame_seconds`",
            [=](Config& config, Settings& s) {
              s.connection.frame.bytesPerSecond =
                  kKiB * config.number("limits.frame_kib_per_second", 0.1, 1 << 20, frameRate);
            });
  table.seconds(
      "limits.ping_seconds", 0.1, 600, [](Settings & s) -> auto& { return s.connection.pingEvery; },
      "time between two Pings");
  table.seconds(
      "limits.ping_timeout_seconds", 0.1, 600,
      [](Settings & s) -> auto& { return s.connection.pingTimeout; },
      "a client that sends no byte for this long after a Ping is disconnected");
  table.seconds("limits.drain_seconds", 0, 3600, &Settings::drain,
                "time for steps in progress to finish when the server shuts down");
  table.seconds("limits.park_seconds", 0, 86400, &Settings::park,
                "how long a run whose connection broke is kept, so that its client can continue it "
                "over a new one; 0: the run ends immediately");
  table.number("limits.action_seconds", "s", 0.01, 86400, &Settings::actionSeconds,
               "maximum time of one action on the device; a session whose action takes longer ends "
               "after that action");
  table.number("limits.codec_seconds", "s", 0.01, 86400, &Settings::codecSeconds,
               "maximum time for encoding or decoding one tensor; a session that takes longer "
               "ends");
  table.text("access.file", "path", &Settings::accessFile,
             "permissions of each identity: [security.md](security.md#who-may-do-what)");
  table.boolean("weights.fetch", &Settings::fetchWeights,
                "whether clients may fetch their trained body");
  table.mebibytes(
      "weights.keep_mib", 0, kMaxDiskMiB, &Settings::keepWeightsBytes,
      "maximum size of the initial weights that are stored per identity, so that its "
      "clients need not send them again; they count towards `limits.disk_mib`; 0: none");
  table.boolean("checkpoints.allowed", &Settings::allowCheckpoints,
                "whether runs may save checkpoints in the store; they count towards "
                "`limits.disk_mib`");
  table.boolean("checkpoints.keep_finished", &Settings::keepFinished,
                "whether the last checkpoint of a finished run is kept, so that it can be [trained "
                "for more epochs](reliability.md#more-epochs), until its identity needs the space");
  table.boolean("kept_samples.on_disk", &Settings::samplesOnDisk,
                "whether the samples that `delta` keeps are in files in the store instead of "
                "memory; twice their size then counts towards `limits.disk_mib`");
  table.boolean("probe.allowed", &Settings::allowProbe, "whether clients may measure the link");
  table.choice("log.format", {"text", "json"}, &Settings::logFormat,
               "form of the lines on stderr; `json`: [an object per line](metrics.md#the-log)");
  table.boolean("usage.enabled", &Settings::keepUsage,
                "whether the store has an account of what each identity uses, for [`cleave-server "
                "usage`](cli.md#cleave-server-usage)");
  table.text("store", "path", &Settings::store,
             "records of runs, in `<store>/<identity>/<run id>/`; without TLS the identity is "
             "`local`");
  table.add(
      "status.socket", "path, `off`", "", "`<store>/.status/socket`",
      "Unix socket for `cleave-server status` and `cleave-server sessions`; `off`: none",
      [](Config& config, Settings& s) { s.statusSocket = readStatusSocket(config, s.store); });
  table.integer(
      "metrics.error_every", "tensors", 0, 1 << 30, &Settings::errorEvery,
      "measures the codec's error on one in N of the tensors that the server sends; 0: only if a "
      "client's `quality.every` requests it");
  table.add("metrics.rotate", "`off`, or 64kB … 1GB", "", "`off`",
            "size at which a CSV file is continued in a new one",
            [](Config& config, Settings& s) { s.rotateBytes = readRotateBytes(config); });
  table.add("metrics.listen", "`ADDRESS:PORT`", "", "none",
            "serves metrics to Prometheus at `/metrics`, such as `127.0.0.1:9464`: "
            "[metrics.md](metrics.md#prometheus)",
            [](Config& config, Settings& s) { s.metrics = readMetricsSettings(config); });
  table
      .boolean("metrics.identity_label", &Settings::labelIdentities,
               "whether metrics have figures per identity, as the label `identity`; identities "
               "that `access.file` does not list are `other`")
      .then([](Config& config, Settings& s) {
        if (!s.labelIdentities || !s.accessFile.empty()) return;
        throw UsageError("bad-config",
                         config.where("metrics.identity_label") +
                             ": metrics.identity_label needs access.file, which lists the "
                             "identities to show",
                         "set access.file");
      });
  table.add("metrics.anywhere", "boolean", "", "`false`",
            "allows `metrics.listen` to be an address other than loopback, without TLS", nullptr);
  return table;
}

}  // namespace

std::string unconfinedText(const std::string& why) {
  return "models of clients (graph) are computed without confinement, so one could read and change "
         "all runs of this server: " +
         why;
}

const ConfigTable<ServerSettings>& serverKeys() {
  static const ConfigTable<ServerSettings> kTable = makeTable();
  return kTable;
}

ServerSettings readServerSettings(Config& config) {
  refuseKeysOf(config, "cleave-client train", {"run", "model", "data", "train", "codec"});
  ServerSettings settings = serverKeys().read(config);
  settings.resolved = config.resolved();
  return settings;
}

}  // namespace cleave
