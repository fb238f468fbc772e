#include "client/client_program.h"

#include <spdlog/fmt/fmt.h>
#include <CLI/CLI.hpp>

#include "client/commands/commands.h"
#include "client/commands/dashboard.h"
#include "client/commands/listing.h"
#include "common/engine/trace.h"
#include "common/files/environment.h"

namespace cleave {
namespace {

constexpr const char* kCommonExitCodes =
    "Exit codes: 0 done, 1 failed run, 2 usage error or unsafe configuration.";

}  // namespace

int runClientProgram(int argc, char** argv) {
  CLI::App app{
      "Trains a model whose middle layers run on a server; data and labels stay on the client.",
      "cleave-client"};
  app.set_version_flag("--version", softwareVersion());
  app.require_subcommand(1);
  app.footer("'cleave-client COMMAND --help' shows a command's options and an example.");
  std::function<int()> command;

  TrainOptions train;
  CLI::App* trainApp = app.add_subcommand(
      "train", "Trains a model, evaluates it, and writes its weights and records");
  addRunOptions(*trainApp, train.run);
  trainApp->footer(
      std::string("Example:\n  cleave-client train --config configs/fashion_mnist.yaml "
                  "--server 10.0.0.5:4800 --set train.epochs=3\n  cleave-client train --config "
                  "configs/fashion_mnist.yaml --dry-run\n  cleave-client train --config "
                  "configs/fashion_mnist.yaml --trace trace.json\n  cleave-client train --config "
                  "configs/fashion_mnist.yaml --json-lines --quiet | jq -c 'select(.event == "
                  "\"epoch\")'\n  cleave-client train --resume runs/RUN\n\n") +
      kCommonExitCodes);
  auto* quiet =
      trainApp->add_flag("--quiet", train.quiet, "Prints only warnings, errors and the summary");
  quiet->excludes(trainApp->get_option("--log-level"));
  auto* jsonLines =
      trainApp->add_flag("--json-lines", train.jsonLines,
                         "Prints events to stdout as they happen, one JSON object per line: begin, "
                         "step, epoch, then done or failed; everything else goes to stderr");
  jsonLines->excludes(trainApp->get_option("--json"));
  trainApp->get_option("--config")->required(false);
  auto* resume = trainApp
                     ->add_option("--resume", train.run.resume,
                                  "Continues the run in this folder from its newest checkpoint, "
                                  "with its configuration and its server")
                     ->type_name("RUN")
                     ->excludes(trainApp->get_option("--config"))
                     ->excludes(trainApp->get_option("--run-dir"));
  trainApp
      ->add_flag("--from-start", train.run.fromStart,
                 "With --resume: starts over from step 0 instead")
      ->needs(resume);
  trainApp
      ->add_flag("--allow-inexact", train.run.allowInexact,
                 "With --resume: continues on another processor or device, or with another number "
                 "of threads; the results may then not be bit-identical")
      ->needs(resume);
  trainApp
      ->add_flag(
          "--take-over", train.run.takeOver,
          "With --resume: continues from a folder restored from a backup, and disconnects any "
          "client that has continued the run since that backup")
      ->needs(resume);
  bool dryRun = false;
  trainApp
      ->add_flag("--dry-run", dryRun,
                 "Prints the model, the bytes to transfer and the memory needed, without starting "
                 "anything")
      ->excludes(jsonLines)
      ->excludes(resume);
  trainApp->add_flag("--probe", train.probe,
                     "Measures the link first, like the command probe, and records the result; "
                     "same as --set probe.first=true");
  auto* trace = trainApp
                    ->add_option("--trace", train.trace,
                                 "Writes a timeline of both sides, per micro-batch, for "
                                 "ui.perfetto.dev or chrome://tracing")
                    ->type_name("FILE");
  trainApp
      ->add_option("--trace-steps", train.traceSteps,
                   "Number of steps in the trace, which starts with step 2")
      ->default_str("20")
      ->check(CLI::Range(std::uint64_t{1}, kMaxTraceSteps))
      ->needs(trace);
  auto* traffic = trainApp
                      ->add_option("--record-traffic", train.traffic.folder,
                                   "Records what the servers see, for an audit, in this folder: "
                                   "docs/privacy.md")
                      ->type_name("DIR");
  trainApp
      ->add_option("--record-steps", train.traffic.steps,
                   "Number of training steps to record, from the first one")
      ->default_str("100")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{999'999'999}))
      ->needs(traffic);
  trainApp->add_option("--record-mib", train.traffic.mib, "Maximum MiB of all recorded tensors")
      ->default_str("1024")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 30))
      ->needs(traffic);
  trainApp
      ->add_flag("--record-inputs", train.traffic.inputs,
                 "Also records the inputs and targets, which an audit compares with what an "
                 "attacker reconstructs")
      ->needs(traffic);
  auto* dashboard = trainApp
                        ->add_option("--dashboard", train.dashboard,
                                     "During the run, serves the report at this address, such as "
                                     "127.0.0.1:8900; 'cleave-client report' writes it afterwards")
                        ->type_name("ADDRESS:PORT");
  addAnywhereOption(*trainApp, train.anywhere, *dashboard);
  trainApp->callback(
      [&] { command = [&] { return dryRun ? dryRunCommand(train.run) : trainCommand(train); }; });

  addNewCommand(app, command);
  addVerifyCommand(app, command);

  bool listAsJson = false;
  for (const ListingRow& row : listingTable()) {
    CLI::App* list = app.add_subcommand(std::string(row.command), std::string(row.summary));
    list->add_flag("--json", listAsJson, "Prints JSON");
    list->footer(fmt::format("Example:\n  cleave-client {} --json", row.command));
    if (row.command == "models") addModelsShowCommand(*list, command);
    list->callback([&, row, list] {
      if (list->get_subcommands().empty())
        command = [&, row] { return listCommand(row, listAsJson); };
    });
  }

  KeysOptions keys;
  addKeysCommand(app, keys, configurationKeys, command);

  for (const auto add : {addDataCommands, addProfileCommand, addPlanCommand, addSimulateCommand,
                         addSweepCommand, addProbeCommand, addCheckpointsCommand,
                         addPretrainCommand, addEvalCommand, addPredictCommand, addExportCommand,
                         addReportCommand, addDoctorCommand, addCodecCommands}) {
    add(app, command);
  }
  return runProgram(app, argc, argv, [&] { return command(); });
}

}  // namespace cleave
