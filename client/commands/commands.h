// The commands of cleave-client; each has its own source file. A function add…Command() adds a
// command to `app`. If the user runs that command, its callback sets `command` to a function that
// runs it with `options` and returns the exit code.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "client/commands/link_options.h"
#include "client/config/run_options.h"
#include "client/evaluate/inference_options.h"

namespace cleave {

struct VerifyOptions {
  RunOptions run;
  std::uint64_t steps = 3;
  double tolerance = 0;  // maximum relative difference; 0 requires bit-identical results
};

struct TrainOptions {
  RunOptions run;
  bool probe = false;  // measures the link before training, like probe.first in the configuration
  std::string trace;   // a file path; empty: no file
  std::uint64_t traceSteps = 20;
  std::string dashboard;  // ADDRESS:PORT; empty: no dashboard
  bool anywhere = false;
  bool quiet = false;      // shows no progress and logs only warnings and errors
  bool jsonLines = false;  // writes one JSON object per line to stdout for each event
};
int trainCommand(const TrainOptions& options);
// Prints what `train` would do, without doing it.
int dryRunCommand(const RunOptions& options);
int verifyCommand(const VerifyOptions& options);

struct NewOptions {
  std::string data, model;             // paths; `model` may be empty
  std::string label;                   // a column; empty: it is detected
  std::vector<std::string> overrides;  // --set
  std::string output;                  // a file path; empty: named after the data
  bool overwrite = false;              // replaces an existing file
};
void addNewCommand(CLI::App& app, NewOptions& options, std::function<int()>& command);

struct ModelsShowOptions {
  std::string file;
  bool all = false;
  bool json = false;
};
// Adds the subcommand `models show`.
void addModelsShowCommand(CLI::App& models, ModelsShowOptions& options,
                          std::function<int()>& command);

struct DataShowOptions {
  CommonOptions common;
  std::string sheet;  // a file path; empty: no file
  bool json = false;
};
struct DataCheckOptions {
  CommonOptions common;
  std::uint32_t threads = 0;  // 0: one per core
  std::string output;         // a file path; empty: no file
  bool overwrite = false;     // replaces an existing file
  bool json = false;
};
// Adds the command `data` with its subcommands.
void addDataCommands(CLI::App& app, DataShowOptions& show, DataCheckOptions& check,
                     std::function<int()>& command);
// Adds the subcommand `data check`.
void addDataCheckCommand(CLI::App& data, DataCheckOptions& options, std::function<int()>& command);

struct ProfileOptions {
  RunOptions run;  // only its configuration and `json`
  std::string output = "client.json";
  std::vector<std::string> codecs;
  std::uint32_t repeats = 3;
};
void addProfileCommand(CLI::App& app, ProfileOptions& options, std::function<int()>& command);

struct PlanOptions {
  RunOptions run;                           // only its configuration and `json`
  std::string profile;                      // file path
  std::vector<std::string> serverProfiles;  // file paths
  LinkOptions link;
  std::vector<std::string> codecs;
  bool keepCuts = false;
  std::optional<std::uint32_t> staleness;  // the maximum; default: the configured one
  std::optional<std::uint32_t> replicas;   // the maximum; default: the configured number
  std::string clientMemory, serverMemory;  // with units; empty: from the profiles
};
void addPlanCommand(CLI::App& app, PlanOptions& options, std::function<int()>& command);

struct SimulateOptions {
  RunOptions run;
  LinkOptions link;
  std::vector<std::uint32_t> microBatches;
  std::uint32_t inFlight = 0;  // 0: the default of each schedule
  std::uint32_t steps = 4;
  std::uint32_t staleness = 0;              // of the run whose steps overlap; 0: none is predicted
  std::string profile;                      // file path; empty: no file
  std::vector<std::string> serverProfiles;  // file paths
  bool timeline = false;
  std::string trace;  // a file path; empty: no file
};
void addSimulateCommand(CLI::App& app, SimulateOptions& options, std::function<int()>& command);

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
void addProbeCommand(CLI::App& app, ProbeCommandOptions& options, std::function<int()>& command);

struct CheckpointsOptions {
  std::string run;  // folder
  bool json = false;
};
void addCheckpointsCommand(CLI::App& app, CheckpointsOptions& options,
                           std::function<int()>& command);

struct EvalOptions {
  InferenceOptions inference;
};
void addEvalCommand(CLI::App& app, EvalOptions& options, std::function<int()>& command);

struct PredictOptions {
  InferenceOptions inference;
  std::vector<std::string> inputs;
  std::string output;      // file path; empty: stdout
  bool overwrite = false;  // replaces an existing file
  bool raw = false;        // the model's outputs instead of classes and probabilities
};
void addPredictCommand(CLI::App& app, PredictOptions& options, std::function<int()>& command);

struct PretrainOptions {
  RunOptions run;  // only its configuration and `json`
  std::string output = "inserts.safetensors";
  bool overwrite = false;  // replaces an existing file
};
void addPretrainCommand(CLI::App& app, PretrainOptions& options, std::function<int()>& command);

struct ExportOptions {
  std::string source;  // the folder of a run, or a model file
  bool best = false;
  std::string output;
  bool overwrite = false;
  bool json = false;
};
void addExportCommand(CLI::App& app, ExportOptions& options, std::function<int()>& command);

// Adds the options that all commands with a trained model share.
void addInferenceOptions(CLI::App& command, InferenceOptions& options);

struct ReportCommandOptions {
  std::vector<std::string> runs, serverRuns;
  std::string output;   // file path; empty: report.html (see --help)
  std::string figures;  // folder for SVG and CSV files; empty: writes the page
  std::string serve;    // ADDRESS:PORT; empty: writes the page to a file
  bool anywhere = false;
  bool json = false;
  std::string logLevel = "info";
};
void addReportCommand(CLI::App& app, ReportCommandOptions& options, std::function<int()>& command);

struct SweepOptions {
  RunOptions run;
  std::vector<std::string> grid, reference;  // KEY=VALUE
  std::string folder;                        // empty: sweeps/<run.name>
  std::string figures;                       // file path; empty: see --help
  bool dryRun = false;
};
void addSweepCommand(CLI::App& app, SweepOptions& options, std::function<int()>& command);

struct DoctorOptions {
  RunOptions run;
  double seconds = 3;  // approximate duration of the link measurement
};
void addDoctorCommand(CLI::App& app, DoctorOptions& options, std::function<int()>& command);

// Options of the commands `codec list`, `codec run` and `codec compare`.
struct CodecOptions {
  std::vector<std::string> specs;
  std::string input;
  std::string output;
  bool overwrite = false;
  bool json = false;
};
void addCodecCommands(CLI::App& app, CodecOptions& options, std::function<int()>& command);

}  // namespace cleave
