#include "server/server_program.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/core/endpoint.h"
#include "common/core/log.h"
#include "common/files/environment.h"
#include "common/http/http_server.h"
#include "common/net/streams/connect_to.h"
#include "common/program/program.h"
#include "common/run/device.h"
#include "common/run/metrics.h"
#include "common/run/self_check.h"
#include "server/commands/commands.h"
#include "server/config/resources.h"
#include "server/config/settings.h"
#include "server/sessions/server.h"
#include "stage/stage_processes.h"

namespace cleave {
namespace {

// Returns the given command line, with TLS enabled.
std::string serveWithTls(const CommonOptions& options) {
  std::string command = "cleave-server serve";
  if (!options.config.empty()) command += " --config " + shellWord(options.config);
  for (const std::string& value : options.overrides) {
    if (!value.starts_with("tls.enabled=")) command += " --set " + shellWord(value);
  }
  return command + " --set tls.enabled=true";
}

void refuseUnsafeBind(const ServerSettings& settings, const CommonOptions& options) {
  if (isLoopback(settings.address) || settings.tls.enabled) return;
  throw UsageError(
      "unsafe-bind",
      "listening on " + settings.address +
          " without TLS would let anyone who can reach it train here and read the traffic",
      "make certificates, and serve with them:\n  cleave-server certs init --folder " +
          shellWord(settings.tls.folder) + "\n  " + serveWithTls(options));
}

// The relay itself refuses to connect a server without TLS with clients on a network.
void refuseUnsafeDial(const ServerSettings& settings, const CommonOptions& options) {
  if (!settings.dial || settings.tls.enabled) return;
  const std::string& host = settings.dial->relay.host;
  if (isLoopbackHost(host)) return;
  throw UsageError("unsafe-dial",
                   "serving through the relay at " + host +
                       " without TLS would let anyone who can reach it train here and read the "
                       "traffic",
                   "make certificates for the relay's name, and serve with them:\n  cleave-server "
                   "certs init --folder " +
                       shellWord(settings.tls.folder) + " --name " + shellWord(host) + "\n  " +
                       serveWithTls(options));
}

bool allowsGraphs(const ServerSettings& settings) {
  return std::ranges::count(settings.allowedModels, "graph") > 0;
}

// A graph is the client's code. `missing`: why nothing confines it; empty if it is confined.
void checkUnconfinedGraphs(ServerSettings& settings, const std::string& missing) {
  if (missing.empty() || !allowsGraphs(settings)) return;
  if (settings.allowsUnconfined) {
    settings.unconfined = missing;
    return processLog()->warn("models.unconfined: {}", unconfinedText(missing));
  }
  if (settings.namesModels) {
    throw UsageError("unconfined-graphs",
                     "models.allow contains graph, but nothing would confine a client's graph "
                     "here: " +
                         missing,
                     "remove graph from models.allow, or, if you trust all clients, set "
                     "models.unconfined: true");
  }
  std::erase(settings.allowedModels, "graph");
  processLog()->info(
      "models of clients (graph) are not allowed, because nothing confines them here: {}", missing);
}

int serve(const CommonOptions& options) {
  startLog("cleave-server", options.logLevel);
  std::optional<StageProcesses> stages(std::in_place);  // before this process has keys and threads
  Config config = loadConfig(options);
  ServerSettings settings = readServerSettings(config);
  if (settings.logFormat == "json") logAsJson("cleave-server");
  refuseUnsafeBind(settings, options);
  refuseUnsafeDial(settings, options);
  const std::string missing =
      settings.device == "cpu" ? stages->missing() : "on a GPU, this process computes all runs";
  checkUnconfinedGraphs(settings, missing);
  if (!missing.empty()) stages.reset();
  ComputeDevice& device = openDevice(settings.device);
  processLog()->info("computing on {}{}", device.description(),
                     missing.empty() ? ", each run in a process of its own" : "");
  if (device.memoryBytes() > 0 && settings.memoryBytes > device.memoryBytes()) {
    processLog()->info("limits.memory_mib is more than the device has; lowered to {} MiB",
                       device.memoryBytes() >> 20);
    settings.memoryBytes = device.memoryBytes();
  }
  claimDescriptors(settings);
  const auto metrics = settings.metrics ? std::make_shared<Metrics>(Role::server) : nullptr;
  Server server(settings, device, metrics, stages ? &*stages : nullptr);
  std::unique_ptr<HttpServer> http;
  if (metrics) {
    metrics->sampleWith([&server] { return server.samples(); });
    http = serveMetrics(*settings.metrics, metrics);
  }
  // Runs before the server prints its address: no client is waiting yet, and no session affects the
  // measurement.
  checkMachine(chooseThreads(usableCores(), 0, settings.threads, false).threads);
  processLog()->info("{}", memoryBound(settings).text());
  std::cout << "cleave-server listens on " << Endpoint{settings.address, server.port()}.text()
            << std::endl;
  server.run();
  return 0;
}

}  // namespace

int runServerProgram(int argc, char** argv) {
  CLI::App app{"Hosts the middle layers of its clients' models, and trains them.", "cleave-server"};
  app.set_version_flag("--version", softwareVersion());
  app.require_subcommand(1);
  app.footer("'cleave-server COMMAND --help' shows a command's options and an example.");
  std::function<int()> command;

  CommonOptions serving;
  CLI::App* serveApp = app.add_subcommand("serve", "Listens for clients until SIGINT or SIGTERM");
  addCommonOptions(*serveApp, serving, false);
  serveApp
      ->add_option_function<std::string>(
          "--dial",
          [&serving](const std::string& relay) {
            serving.overrides.push_back("dial.relay=" + relay);
          },
          "Serves clients through the cleave-relay at this address: sets dial.relay")
      ->type_name("HOST:PORT");
  serveApp->footer(
      "Examples:\n  cleave-server serve --config configs/server.yaml --set listen.port=4801\n"
      "  cleave-server serve --dial RELAY:4801 --set dial.secret=relay.secret --set "
      "tls.enabled=true\n\n"
      "SIGHUP reloads the access file and the certificates, and ends the sessions of removed "
      "identities and revoked certificates. If its terminal is closed, the server shuts down, "
      "unless it was started with nohup or setsid.\n\n"
      "Exit codes: 0 ended by a signal, 1 failed, 2 usage error or unsafe configuration.");
  serveApp->callback([&] { command = [&] { return serve(serving); }; });

  KeysOptions keys;
  addKeysCommand(
      app, keys, [] { return serverKeys().texts(); }, command);

  for (const auto add : {addStatusCommand, addServerProfileCommand, addSessionsCommands,
                         addRunsCommands, addUsageCommand, addCertsCommands}) {
    add(app, command);
  }
  return runProgram(app, argc, argv, [&] { return command(); });
}

}  // namespace cleave
