// cleave-server: keeps the middle layers of its clients' models.

#include <algorithm>
#include <iostream>

#include "common/core/environment.h"
#include "common/core/log.h"
#include "daemon/device.h"
#include "daemon/program.h"
#include "daemon/self_check.h"
#include "server/resources.h"
#include "server/server.h"
#include "server/settings.h"

namespace cleave {
namespace {

struct ServeOptions {
  CommonOptions common;
  bool insecureBind = false;
};

int serve(const ServeOptions& options) {
  startLog("cleave-server", options.common.logLevel);
  Config config = loadConfig(options.common);
  ServerSettings settings = readServerSettings(config);
  if (!isLoopback(settings.address)) {
    if (!options.insecureBind) {
      throw UsageError(
          "unsafe-bind",
          "listening on " + settings.address +
              " would let anyone who reaches it train here and read what crosses the wire",
          "bind 127.0.0.1 and tunnel (ssh -L), or, in a network you trust, add --insecure-bind");
    }
    processLog()->warn("listening on {} without encryption or authentication (--insecure-bind)",
                       settings.address);
  }
  ComputeDevice& device = openDevice(settings.device);
  processLog()->info("computing on {}", device.description());
  if (device.memoryBytes() > 0 && settings.memoryBytes > device.memoryBytes()) {
    processLog()->info("limits.memory_mib is more than the device has: it is lowered to {} MiB",
                       device.memoryBytes() >> 20);
    settings.memoryBytes = device.memoryBytes();
  }
  claimDescriptors(settings);
  Server server(settings, device);
  // Before it says that it listens: no client waits for it yet, and no session disturbs it.
  const int cores = usableCores();
  checkMachine(settings.threads == 0 ? cores : std::min(settings.threads, cores));
  processLog()->info("{}", memoryBound(settings).text());
  std::cout << "cleave-server listens on " << settings.address << ":" << server.port() << std::endl;
  server.run();
  return 0;
}

int run(int argc, char** argv) {
  CLI::App app{"Keeps the middle layers of its clients' models, and trains them.", "cleave-server"};
  app.set_version_flag("--version", softwareVersion());
  app.require_subcommand(1);
  ServeOptions options;
  CLI::App* command = app.add_subcommand("serve", "Listens for clients until SIGINT or SIGTERM");
  addCommonOptions(*command, options.common, false);
  command->add_flag("--insecure-bind", options.insecureBind,
                    "Allows listen.address to be another than loopback, without encryption");
  command->footer(
      "Example:\n  cleave-server serve --config configs/server.yaml --set listen.port=4801\n\n"
      "Exit codes: 0 ended by a signal, 1 failed, 2 wrong use or unsafe configuration.");
  app.footer("'cleave-server serve --help' shows the options and an example.");
  return runProgram(app, argc, argv, [&] { return serve(options); });
}

}  // namespace
}  // namespace cleave

int main(int argc, char** argv) {
  cleave::prepareProcess(argv);
  return cleave::run(argc, argv);
}
