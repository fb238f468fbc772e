#include "server/settings.h"

#include <algorithm>
#include <boost/asio/ip/address.hpp>

#include "common/core/units.h"
#include "common/model/model.h"
#include "common/run/config_errors.h"
#include "common/run/device.h"
#include "common/run/run_folder.h"
#include "server/access.h"

namespace cleave {
namespace {

std::vector<std::string> allModels() {
  std::vector<std::string> names;
  for (const ModelRow& row : modelTable()) names.emplace_back(row.name);
  return names;
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(1000 * seconds));
}

double seconds(std::chrono::milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

void readConnectionLimits(Config& config, ServerSettings& settings) {
  ConnectionLimitSettings& limits = settings.connections;
  limits.connections = static_cast<std::uint32_t>(
      config.integer("limits.connections", settings.maxSessions, 1 << 20,
                     std::max(limits.connections, settings.maxSessions)));
  limits.connectionsPerAddress = static_cast<std::uint32_t>(
      config.integer("limits.connections_per_address", 1, 1 << 20, limits.connectionsPerAddress));
  limits.perSecond = config.number("limits.handshakes", 1, 1e6, limits.perSecond);
  limits.burst = config.number("limits.handshakes_burst", 1, 1e6, limits.burst);
  limits.perSecondPerAddress =
      config.number("limits.handshakes_per_address", 0.1, 1e6, limits.perSecondPerAddress);
}

void readShares(Config& config, ServerSettings& settings) {
  ShareSettings& share = settings.share;
  const auto bytes = [&](const char* key, std::int64_t least, std::int64_t mebibytes) {
    return kMiB * static_cast<std::size_t>(config.integer(key, least, kMostDiskMiB, mebibytes));
  };
  // Without TLS, all clients are one identity.
  const std::uint32_t half = std::max(1u, settings.maxSessions / 2);
  const auto sessions =
      static_cast<std::uint32_t>(config.integer("limits.sessions_per_identity", 0, 10000, 0));
  share.sessions = sessions > 0 ? sessions : settings.tls.enabled ? half : settings.maxSessions;
  share.runsPerHour = static_cast<std::uint32_t>(
      config.integer("limits.runs_per_hour", 1, kMostRunsPerHour, share.runsPerHour));
  share.diskBytes = bytes("limits.disk_mib", 1, 64 << 10);
  settings.diskReserveBytes = bytes("limits.disk_reserve_mib", 0, 512);
  share.idleSeconds = config.number("limits.idle_seconds", 1, kMostIdleSeconds, share.idleSeconds);
}

void readDeadlines(Config& config, ServerSettings& settings) {
  ConnectionOptions& peer = settings.connection;
  const auto read = [&](const char* key, double least, double most,
                        std::chrono::milliseconds time) {
    return milliseconds(config.number(key, least, most, seconds(time)));
  };
  peer.tlsDeadline = read("limits.tls_seconds", 0.1, 60, peer.tlsDeadline);
  peer.helloDeadline = read("limits.hello_seconds", 0.1, 60, peer.helloDeadline);
  peer.frame.grace = read("limits.frame_seconds", 0.1, 600, peer.frame.grace);
  constexpr double kKiB = 1024;
  peer.frame.bytesASecond = kKiB * config.number("limits.frame_kib_per_second", 0.1, 1 << 20,
                                                 peer.frame.bytesASecond / kKiB);
  peer.pingEvery = read("limits.ping_seconds", 0.1, 600, peer.pingEvery);
  peer.pingTimeout = read("limits.ping_timeout_seconds", 0.1, 600, peer.pingTimeout);
  settings.drain = read("limits.drain_seconds", 0, 3600, settings.drain);
  settings.actionSeconds =
      config.number("limits.action_seconds", 0.01, 86400, settings.actionSeconds);
  settings.codecSeconds = config.number("limits.codec_seconds", 0.01, 86400, settings.codecSeconds);
}

// In its own folder, so that access to the folder can be restricted to its owner.
std::string readStatusSocket(Config& config, const std::string& store) {
  const std::string path = config.text("status.socket", "");
  if (path == "off") return "";
  return path.empty() ? store + "/.status/socket" : path;
}

}  // namespace

bool isLoopback(const std::string& address) {
  boost::system::error_code error;
  const auto parsed = boost::asio::ip::make_address(address, error);
  return !error && parsed.is_loopback();
}

ServerSettings readServerSettings(Config& config) {
  ServerSettings settings;
  refuseKeysOf(config, "cleave-client train", {"run", "model", "data", "train", "codec"});
  settings.address = config.text("listen.address", settings.address);
  boost::system::error_code error;
  boost::asio::ip::make_address(settings.address, error);
  if (error) {
    throw UsageError(
        "bad-config",
        config.where("listen.address") + ": listen.address is '" + settings.address +
            "', which is not an IP address",
        "use 127.0.0.1 for this machine alone, or the address of one of its interfaces");
  }
  settings.port =
      static_cast<std::uint16_t>(config.integer("listen.port", 0, 65535, settings.port));
  settings.device = config.text("device", settings.device);
  checkAt(config, "device", [&] { checkDeviceName(settings.device); });
  settings.threads = static_cast<int>(config.integer("threads", 0, 1024, settings.threads));
  settings.allowedModels = config.texts("models.allow", allModels());
  checkAt(config, "models.allow", [&] {
    for (const std::string& name : settings.allowedModels) findModel(name);
  });
  settings.maxSessions =
      static_cast<std::uint32_t>(config.integer("limits.sessions", 1, 10000, settings.maxSessions));
  settings.memoryBytes =
      kMiB * static_cast<std::size_t>(config.integer("limits.memory_mib", 1, 1 << 24, 8192));
  settings.tls = readTlsSettings(config);
  readShares(config, settings);
  readConnectionLimits(config, settings);
  readDeadlines(config, settings);
  settings.store = config.text("store", settings.store);
  settings.statusSocket = readStatusSocket(config, settings.store);
  settings.accessFile = config.text("access.file", settings.accessFile);
  settings.fetchWeights = config.boolean("weights.fetch", settings.fetchWeights);
  settings.allowProbe = config.boolean("probe.allowed", settings.allowProbe);
  settings.allowWait = config.boolean("wait.allowed", settings.allowWait);
  settings.errorEvery = static_cast<std::uint32_t>(
      config.integer("metrics.error_every", 0, 1 << 30, settings.errorEvery));
  settings.rotateBytes = readRotateBytes(config);
  settings.metrics = readMetricsSettings(config);
  config.refuseUnknown();
  settings.resolved = config.resolved();
  return settings;
}

}  // namespace cleave
