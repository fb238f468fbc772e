// cleave-relay: clients reach a server behind NAT through it.

#include <spdlog/fmt/fmt.h>
#include <sys/resource.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <iostream>
#include <string>

#include "common/core/error.h"
#include "common/core/log.h"
#include "common/core/units.h"
#include "common/files/environment.h"
#include "common/net/streams/listen.h"
#include "common/program/program.h"
#include "tools/relay/relay.h"

namespace cleave::relay {
namespace {

struct Flags {
  std::string listen = "127.0.0.1:4800";
  std::string server = "127.0.0.1:4801";
  std::string secret;
  std::size_t maxPending = Settings().maxPending;
  std::size_t maxConnections = Settings().maxConnections;
  std::string pendingTime = "10s";
  std::string idleTime = "900s";
  std::string logLevel = "info";
};

Settings readSettings(const Flags& flags) {
  Settings settings;
  settings.clients = parseListen({"--listen", flags.listen});
  settings.server = parseListen({"--register", flags.server});
  settings.secret = readRelaySecret(flags.secret);
  settings.maxPending = flags.maxPending;
  settings.maxConnections = flags.maxConnections;
  settings.pendingTime = parseMoment({"--pending-time", flags.pendingTime});
  settings.idleTime = parseMoment({"--idle-time", flags.idleTime});
  return settings;
}

// Raises the limit of open files, because each client needs two.
void claimDescriptors(const Settings& settings) {
  constexpr rlim_t kOthers = 512;  // unchecked connections, and the program's own files
  const rlim_t needed = 2 * settings.maxConnections + settings.maxPending + kOthers;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  limit.rlim_cur = std::min(needed, limit.rlim_max);
  if (limit.rlim_cur >= needed && ::setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
  throw UsageError(
      "too-few-descriptors",
      fmt::format("{} connections need {} open files, and the limit is {}", settings.maxConnections,
                  needed, limit.rlim_max),
      fmt::format("raise the limit with ulimit -n {}, or lower --connections", needed));
}

int serve(const Flags& flags) {
  startLog("cleave-relay", flags.logLevel);
  const Settings settings = readSettings(flags);
  claimDescriptors(settings);
  boost::asio::io_context context{1};
  Relay relay(context, settings);
  boost::asio::signal_set signals(context, SIGINT, SIGTERM);
  signals.async_wait([&](const boost::system::error_code& cancelled, int) {
    if (!cancelled) relay.stop();
  });
  std::cout << "listening on " << textOf(relay.clientsEndpoint()) << " for clients, on "
            << textOf(relay.serverEndpoint()) << " for the server" << std::endl;
  context.run();
  flushLog();
  std::cerr << fmt::format(
      "cleave-relay: {}; {} up, {} down; {} refused\n", countText(relay.accepted(), "client"),
      bytesText(static_cast<double>(relay.bytesUp())),
      bytesText(static_cast<double>(relay.bytesDown())), countText(relay.refused(), "connection"));
  return 0;
}

void addFlags(CLI::App& app, Flags& flags) {
  app.add_option("--listen", flags.listen, "Where clients connect; port 0 picks a free one")
      ->type_name("ADDRESS:PORT")
      ->capture_default_str();
  app.add_option("--register", flags.server, "Where the server connects: its dial.relay")
      ->type_name("ADDRESS:PORT")
      ->capture_default_str();
  app.add_option("--secret", flags.secret, "File with the secret that the server also has")
      ->type_name("FILE")
      ->required();
  app.add_option("--pending", flags.maxPending, "Maximum clients that wait for the server")
      ->check(CLI::Range(1, 1 << 16))
      ->type_name("NUMBER")
      ->capture_default_str();
  app.add_option("--connections", flags.maxConnections, "Maximum clients")
      ->check(CLI::Range(1, 1 << 20))
      ->type_name("NUMBER")
      ->capture_default_str();
  app.add_option("--pending-time", flags.pendingTime, "How long a client may wait for the server")
      ->type_name("TIME")
      ->capture_default_str();
  app.add_option("--idle-time", flags.idleTime,
                 "Time without a byte after which a client is disconnected")
      ->type_name("TIME")
      ->capture_default_str();
  app.add_option("--log-level", flags.logLevel, "trace, debug, info, warn, error")
      ->type_name("LEVEL")
      ->capture_default_str();
}

int run(int argc, char** argv) {
  CLI::App app{"Connects clients with a server behind NAT, which dials out to this relay.",
               "cleave-relay"};
  app.set_version_flag("--version", softwareVersion());
  Flags flags;
  addFlags(app, flags);
  app.footer(
      "Example:\n"
      "  (umask 077; openssl rand -hex 32 > relay.secret)   # copy it to the server\n"
      "  cleave-relay --listen 0.0.0.0:4800 --register 0.0.0.0:4801 --secret relay.secret\n"
      "  server$ cleave-server serve --dial RELAY:4801 --set dial.secret=relay.secret "
      "--set tls.enabled=true\n"
      "  client$ cleave-client train --config CONFIG --server RELAY:4800 --tls certs\n\n"
      "TLS of client and server passes through end to end: the relay has no key. One relay serves "
      "one server.\n"
      "Details: docs/fleet.md.\n\n"
      "Exit codes: 0 ended by a signal, 1 failed, 2 usage error.");
  return runProgram(app, argc, argv, [&] { return serve(flags); });
}

}  // namespace
}  // namespace cleave::relay

int main(int argc, char** argv) { return cleave::relay::run(argc, argv); }
