// cleave-link: emulates a link with a given rate, latency and faults between two programs on one
// machine.

#include <spdlog/fmt/fmt.h>
#include <CLI/CLI.hpp>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <iostream>

#include "common/core/log.h"
#include "common/core/units.h"
#include "common/files/environment.h"
#include "common/program/program.h"
#include "tools/link/relay.h"
#include "tools/link/settings.h"
#include "tools/link/stats.h"

namespace cleave::link {
namespace {

std::string profileText(const Profile& profile) {
  std::string text = rateText(profile.rate) + ", " + durationText(profile.latency);
  if (profile.jitter.count() > 0) text += " + up to " + durationText(profile.jitter);
  if (profile.loss > 0) text += fmt::format(", loss {:.4g} %", 100 * profile.loss);
  return text;
}

int serve(const CommonOptions& options, const Flags& flags) {
  startLog("cleave-link", options.logLevel);
  Config config = loadConfig(options);
  const Settings settings = readSettings(config, flags);
  boost::asio::io_context context{1};
  Relay relay(context, settings);
  Stats stats(context, relay, settings.statsFile, settings.statsInterval);
  boost::asio::signal_set signals(context, SIGINT, SIGTERM);
  signals.async_wait([&](const boost::system::error_code& cancelled, int) {
    if (cancelled) return;
    relay.stop();
    stats.stop();
  });
  processLog()->info("to {}; up {}; down {}", settings.target.text(),
                     profileText(relay.up().profile()), profileText(relay.down().profile()));
  std::cout << "listening on " << relay.address() << std::endl;
  context.run();
  flushLog();
  std::cerr << "cleave-link: " << stats.summary() << "\n";
  return 0;
}

void addFlags(CLI::App& app, Flags& flags) {
  for (const Flag& flag : flagTable()) {
    app.add_option_function<std::string>(
           flag.name,
           [&flags, path = flag.path](const std::string& value) { flags.values[path] = value; },
           flag.help)
        ->type_name(flag.type);
  }
  app.add_option("--event", flags.events,
                 "An event and its time after the first connection; may be repeated")
      ->type_name("EVENT")
      ->allow_extra_args(false);
  app.add_flag("--insecure-bind", flags.insecureBind,
               "Allows --listen to be an address other than loopback");
}

int run(int argc, char** argv) {
  CLI::App app{
      "Forwards TCP connections to a target, and emulates a link of a given rate and latency.",
      "cleave-link"};
  app.set_version_flag("--version", softwareVersion());
  CommonOptions options;
  Flags flags;
  addFlags(app, flags);
  addCommonOptions(app, options, false);
  app.footer(
      "Examples:\n"
      "  cleave-link --listen 127.0.0.1:4900 --target 127.0.0.1:4800 --rate 200Mbit/s "
      "--latency 20ms\n"
      "  cleave-link --target 127.0.0.1:4800 --rate 1Gbit/s --up-rate 50Mbit/s --loss 0.1% "
      "--stats link.csv \\\n"
      "    --event '5s blackhole for 2s' --event '10s half-open up' --event '20s rate 20Mbit/s' "
      "--event '30s reset'\n\n"
      "Events: TIME blackhole [up|down] for TIME, TIME half-open up|down, TIME reset,\n"
      "  TIME rate [up|down] RATE, TIME latency [up|down] TIME.\n"
      "It prints 'listening on ADDRESS:PORT' and serves until SIGINT or SIGTERM. Details: "
      "docs/link.md.\n\n"
      "Exit codes: 0 ended by a signal, 1 failed, 2 usage error.");
  return runProgram(app, argc, argv, [&] { return serve(options, flags); });
}

}  // namespace
}  // namespace cleave::link

int main(int argc, char** argv) { return cleave::link::run(argc, argv); }
