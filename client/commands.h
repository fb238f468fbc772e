// The commands of cleave-client, one file each.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "daemon/program.h"

namespace cleave {

// Options of every command that talks to a server.
struct RunOptions {
  CommonOptions common;
  std::string server;  // HOST:PORT; empty: one of our own
  std::string tls;     // the folder with our certificate; empty: as the configuration says
  std::string runDir;  // empty: runs/<run id>
  bool json = false;
  std::uint64_t traceSteps = 0;  // of both sides, to be recorded; 0: none. `train` alone sets it
};
void addRunOptions(CLI::App& command, RunOptions& options);
void addTlsOption(CLI::App& command, std::string& folder);

struct VerifyOptions {
  RunOptions run;
  std::uint64_t steps = 3;
  double tolerance = 0;  // most relative difference; 0: equal to the bit
};

struct TrainOptions {
  RunOptions run;
  bool probe = false;  // measures the link before it trains, as the configuration's probe.first
  std::string trace;   // a file; empty: none
  std::uint64_t traceSteps = 20;
  std::string dashboard;  // an address and a port; empty: none
  bool anywhere = false;
  bool quiet = false;      // no progress; of the log, warnings and errors
  bool jsonLines = false;  // stdout has a JSON object a line, as things happen
};
int trainCommand(const TrainOptions& options);
// What `train` would do, without doing it.
int dryRunCommand(const RunOptions& options);
int verifyCommand(const VerifyOptions& options);

struct SimulateOptions {
  RunOptions run;
  std::string rate, upRate, downRate;  // with units
  std::string latency;
  std::string queue = "0B";
  std::vector<std::uint32_t> microBatches;
  std::uint32_t steps = 4;
  std::string times, writeTimes;  // files; empty: none
  bool timeline = false;
  std::string trace;  // a file; empty: none
};
// Adds `simulate`. Where it is given it sets `command`, which reads `options`.
void addSimulateCommand(CLI::App& app, SimulateOptions& options, std::function<int()>& command);

struct ProbeCommandOptions {
  std::string server;  // HOST:PORT; empty: one of our own
  std::string tls;     // the folder with our certificate; empty: plain
  std::uint32_t repeat = 3;
  std::string most = "100MB";
  double seconds = 20;
  std::string csv;  // a file; empty: none
  bool json = false;
  std::string logLevel = "info";
};
// Adds `probe`. Where it is given it sets `command`, which reads `options`.
void addProbeCommand(CLI::App& app, ProbeCommandOptions& options, std::function<int()>& command);

struct ReportCommandOptions {
  std::vector<std::string> runs, serverRuns;
  std::string output;  // a file; empty: where the run is
  std::string serve;   // an address and a port; empty: writes the page instead
  bool anywhere = false;
  bool json = false;
  std::string logLevel = "info";
};
// Adds `report`. Where it is given it sets `command`, which reads `options`.
void addReportCommand(CLI::App& app, ReportCommandOptions& options, std::function<int()>& command);

struct SweepOptions {
  RunOptions run;
  std::vector<std::string> grid, reference;  // KEY=VALUE
  std::string folder;                        // empty: sweeps/<run.name>
  std::string figures;                       // a file; empty: beside the configuration
  bool dryRun = false;
};
// Adds `sweep`. Where it is given it sets `command`, which reads `options`.
void addSweepCommand(CLI::App& app, SweepOptions& options, std::function<int()>& command);

struct DoctorOptions {
  RunOptions run;
  double seconds = 3;  // that the link is measured for
};
// Adds `doctor`. Where it is given it sets `command`, which reads `options`.
void addDoctorCommand(CLI::App& app, DoctorOptions& options, std::function<int()>& command);

// Of the commands `codec list`, `codec run` and `codec compare`.
struct CodecOptions {
  std::vector<std::string> specs;
  std::string input;
  std::string output;
  bool overwrite = false;
  bool json = false;
};
// Adds them. The one that is given sets `command`, which reads `options`.
void addCodecCommands(CLI::App& app, CodecOptions& options, std::function<int()>& command);

}  // namespace cleave
