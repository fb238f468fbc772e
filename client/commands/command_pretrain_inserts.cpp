// cleave-client pretrain-inserts: trains the learned inserts alone, before a run.

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "client/commands/commands.h"
#include "client/commands/output_file.h"
#include "client/config/learning_rate.h"
#include "client/data/samples/loader.h"
#include "client/run/saved_model.h"
#include "client/train/train_run.h"
#include "common/core/bytes.h"
#include "common/core/durable.h"
#include "common/core/log.h"
#include "common/model/stage/insert_trainer.h"
#include "common/device/torch_errors.h"

namespace cleave {
namespace {

struct PretrainOptions {
  RunOptions run;  // only its configuration and `json`
  std::string output = "inserts.safetensors";
  bool overwrite = false;  // replaces an existing file
};

using Json = nlohmann::ordered_json;

void checkErrors(const std::vector<double>& errors, const ClientSettings& settings,
                 std::uint64_t step) {
  for (std::size_t n = 0; n < errors.size(); ++n) {
    if (std::isfinite(errors[n])) continue;
    throw RunError("non-finite",
                   fmt::format("the error of the insert at cut {} is not finite after step {}",
                               settings.inserts[n].cut, step),
                   "lower train.learning_rate.peak, or set train.optimizer to adam");
  }
}

// Trains for the run's epochs and steps. Returns the inserts' errors in the last epoch.
std::vector<double> train(InsertTrainer& trainer, const PreparedRun& run, bool isShown) {
  const ClientSettings& settings = run.settings;
  const LearningRateOptions rates = learningRateOptions(settings, *run.data.train);
  const std::uint64_t last = totalSteps(settings, *run.data.train);
  const auto pool = std::make_shared<BufferPool>(std::size_t{1} << 30);
  std::vector<double> errors;
  std::uint64_t step = 0;
  for (std::uint64_t epoch = 1; step < last; ++epoch) {
    Loader loader(run.data.train, pool, trainingOptions(settings, run.data, epoch));
    while (step < last) {
      const auto batch = loader.next();
      if (!batch) break;
      ++step;
      withTorchErrors([&] { trainer.step(viewOf(*batch), step, learningRate(rates, step)); });
    }
    errors = trainer.takeErrors();
    checkErrors(errors, settings, step);
    if (!isShown) continue;
    std::cout << fmt::format("epoch {}, step {}:", epoch, step);
    for (std::size_t n = 0; n < errors.size(); ++n) {
      std::cout << fmt::format("{} cut {}: relative error {:.6g}", n == 0 ? "" : ",",
                               settings.inserts[n].cut, errors[n]);
    }
    std::cout << std::endl;
  }
  return errors;
}

void writeModel(const std::string& path, const PreparedRun& run,
                const std::vector<NamedTensor>& weights) {
  const std::vector<std::byte> plain = toSafetensors(weights);
  const std::vector<std::byte> file =
      writeSafetensors(readSafetensors(plain, path), describeModel(run).toMetadata());
  writeFileDurably(path, textOf(file));
}

int pretrainInserts(const PretrainOptions& options) {
  startLog("cleave-client", options.run.common.logLevel);
  checkOutputFile(options.output, options.overwrite, "inserts.safetensors");
  const PreparedRun run = resolveRun(options.run, Purpose::inference);
  setComputeThreads(run.threads);
  const auto trainer = withTorchErrors(
      [&] { return std::make_unique<InsertTrainer>(run.plan.stage, initialWeights(run)); });
  const std::vector<double> errors = train(*trainer, run, !options.run.json);
  writeModel(options.output, run, trainer->weights());
  if (!options.run.json) {
    std::cout << fmt::format("\nTo train with them:\n  --set weights.file={}\n", options.output);
    return 0;
  }
  Json json = {{"output", options.output},
               {"steps", totalSteps(run.settings, *run.data.train)},
               {"inserts", Json::array()}};
  for (std::size_t n = 0; n < errors.size(); ++n) {
    const InsertSpec& insert = run.settings.inserts[n];
    json["inserts"].push_back(
        {{"cut", insert.cut}, {"kind", insert.kind}, {"relative_error", errors[n]}});
  }
  std::cout << json.dump(2) << std::endl;
  return 0;
}

}  // namespace

void addPretrainCommand(CLI::App& app, std::function<int()>& command) {
  static PretrainOptions options;
  CLI::App* pretrain = app.add_subcommand(
      "pretrain-inserts", "Trains only the learned inserts, each to reproduce its input");
  addCommonOptions(*pretrain, options.run.common, true);
  pretrain
      ->add_option("--output", options.output,
                   "The safetensors file to write: the initial model with the trained inserts")
      ->type_name("FILE")
      ->default_str("inserts.safetensors");
  pretrain->add_flag("--overwrite", options.overwrite, "Replaces the file if it exists");
  pretrain->add_flag("--json", options.run.json, "Prints the result as JSON");
  pretrain->footer(
      "Example:\n  cleave-client pretrain-inserts --config configs/inserts.yaml --set "
      "train.epochs=1 --output inserts.safetensors\n\nRuns in this process, without a server, with "
      "the initial weights, the data, the optimizer and the learning rate of the configuration. "
      "Then train with --set weights.file=inserts.safetensors.\n\n"
      "Exit codes: 0 done, 1 failed, 2 usage error. More: docs/models.md.");
  pretrain->callback([&] { command = [&] { return pretrainInserts(options); }; });
}

}  // namespace cleave
