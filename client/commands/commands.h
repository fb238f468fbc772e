// The commands of cleave-client; each has its own source file. A function add…Command() adds a
// command with its options to `app`. If the user runs that command, its callback sets `command` to
// a function that runs it and returns the exit code.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "client/commands/link_options.h"
#include "client/config/run_options.h"
#include "client/evaluate/inference_options.h"
#include "client/run/traffic_recording.h"

namespace cleave {

struct TrainOptions {
  RunOptions run;
  bool probe = false;  // measures the link before training, like probe.first in the configuration
  std::string trace;   // a file path; empty: no file
  std::uint64_t traceSteps = 20;
  std::string dashboard;  // ADDRESS:PORT; empty: no dashboard
  bool anywhere = false;
  TrafficOptions traffic;
  bool quiet = false;      // shows no progress and logs only warnings and errors
  bool jsonLines = false;  // writes one JSON object per line to stdout for each event
};
int trainCommand(const TrainOptions& options);
// Prints what `train` would do, without doing it.
int dryRunCommand(const RunOptions& options);

void addNewCommand(CLI::App& app, std::function<int()>& command);
void addVerifyCommand(CLI::App& app, std::function<int()>& command);
// Adds the subcommand `models show`.
void addModelsShowCommand(CLI::App& models, std::function<int()>& command);
// Adds the command `data` with its subcommands.
void addDataCommands(CLI::App& app, std::function<int()>& command);
// Adds the subcommand `data check`.
void addDataCheckCommand(CLI::App& data, std::function<int()>& command);
void addProfileCommand(CLI::App& app, std::function<int()>& command);
void addPlanCommand(CLI::App& app, std::function<int()>& command);
void addSimulateCommand(CLI::App& app, std::function<int()>& command);
void addSweepCommand(CLI::App& app, std::function<int()>& command);
void addProbeCommand(CLI::App& app, std::function<int()>& command);
void addCheckpointsCommand(CLI::App& app, std::function<int()>& command);
void addPretrainCommand(CLI::App& app, std::function<int()>& command);
void addEvalCommand(CLI::App& app, std::function<int()>& command);
void addPredictCommand(CLI::App& app, std::function<int()>& command);
void addExportCommand(CLI::App& app, std::function<int()>& command);
void addReportCommand(CLI::App& app, std::function<int()>& command);
void addDoctorCommand(CLI::App& app, std::function<int()>& command);
void addCodecCommands(CLI::App& app, std::function<int()>& command);
// Adds the options that all commands with a trained model share.
void addInferenceOptions(CLI::App& command, InferenceOptions& options);

}  // namespace cleave
