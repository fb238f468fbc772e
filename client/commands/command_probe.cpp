// cleave-client probe: measures throughput and latency of the link to a server.

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "client/commands/commands.h"
#include "client/diagnose/probe.h"
#include "client/diagnose/probe_report.h"
#include "client/run/local_server.h"
#include "client/run/temporary_folder.h"
#include "common/core/durable.h"
#include "common/core/log.h"
#include "common/core/units.h"
#include "common/files/record.h"
#include "common/link/probe/probe_link.h"
#include "common/run/tls_settings.h"

namespace cleave {
namespace {

struct ProbeCommandOptions {
  std::string server;  // HOST:PORT; empty: start a local server
  std::string tls;     // folder with this client's certificate; empty: no TLS
  std::uint32_t repeat = 3;
  std::string max = "100MB";
  double seconds = 20;
  std::string csv;  // a file path; empty: no file
  bool json = false;
  std::string logLevel = "info";
};

ProbeOptions readOptions(const ProbeCommandOptions& options) {
  ProbeOptions probe;
  probe.max = parseSize({"--max-size", options.max});
  if (probe.max < probe.min) {
    throw UsageError("bad-value", "--max-size " + options.max + " is below the minimum of 1kB",
                     "give a size from 1kB to 1GB");
  }
  static_assert(kMaxProbeBytes == 1'000'000'000, "parseSize allows 1GB");
  probe.repeat = options.repeat;
  probe.seconds = options.seconds;
  probe.retrySeconds = 0;
  return probe;
}

int probeCommand(const ProbeCommandOptions& options) {
  startLog("cleave-client", options.logLevel);
  const ProbeOptions probe = readOptions(options);
  if (!options.csv.empty()) checkCanWrite(options.csv);
  std::unique_ptr<TemporaryFolder> store;
  std::unique_ptr<LocalServer> localServer;
  ServerAddress server;
  if (options.server.empty()) {
    store = std::make_unique<TemporaryFolder>();
    localServer = std::make_unique<LocalServer>(store->path(), "cpu");
    server = localServer->address();
  } else {
    server = parseAddress(options.server);
    server.tls = openTls({!options.tls.empty(), options.tls}, TlsRole::client);
  }
  ProbeResult result = probeLink(server, probe);
  if (localServer) result.options.clear();  // that server ends with this command
  if (options.json) {
    std::cout << probeJson(result).dump(2) << std::endl;
  } else {
    std::cout << probeTable(result) << std::flush;
  }
  if (!options.csv.empty()) writeFileDurably(options.csv, probeCsv(result, ""));
  return 0;
}

}  // namespace

void addProbeCommand(CLI::App& app, std::function<int()>& command) {
  static ProbeCommandOptions options;
  CLI::App* probe =
      app.add_subcommand("probe",
                         "Measures the link to a server without training: the round trip, and "
                         "transfers of several sizes up, down and in both directions at once");
  probe
      ->add_option("--server", options.server,
                   "The server; default: the client starts its own on this machine")
      ->type_name("HOST:PORT");
  addTlsOption(*probe, options.tls);
  probe
      ->add_option("--repeat", options.repeat,
                   "Transfers per size and direction; the result uses their median")
      ->default_str("3")
      ->check(CLI::Range(1u, 1000u));
  probe
      ->add_option("--max-size", options.max,
                   "The largest size; the sizes are 1kB, 10kB, 100kB and so on up to this one")
      ->type_name("SIZE")
      ->default_str("100MB");
  probe
      ->add_option("--seconds", options.seconds,
                   "Time limit; sizes expected to exceed the remaining time are skipped")
      ->default_str("20")
      ->check(CLI::Range(0.1, 300.0));
  probe->add_option("--csv", options.csv, "Writes every transfer to this file (docs/metrics.md)")
      ->type_name("FILE");
  probe->add_flag("--json", options.json,
                  "Prints the result as JSON on stdout, and everything else on stderr");
  probe->add_option("--log-level", options.logLevel, "trace, debug, info, warn or error")
      ->default_str("info");
  probe->footer(
      "Example:\n  cleave-client probe --server 10.0.0.5:4800 --seconds 10 --csv link.csv\n\nEach "
      "time in the table is one way. The times of small sizes are mostly latency, so their rates "
      "do not show the capacity of the link.");
  probe->callback([&] { command = [&] { return probeCommand(options); }; });
}

}  // namespace cleave
