// cleave-client pretrain-inserts: fits the learned inserts to the model and the data, before a run.

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "client/commands/commands.h"
#include "client/commands/output_file.h"
#include "client/config/learning_rate.h"
#include "client/data/samples/loader.h"
#include "client/run/saved_model.h"
#include "client/train/train_run.h"
#include "common/core/bytes.h"
#include "common/core/durable.h"
#include "common/core/log.h"
#include "common/device/torch_errors.h"
#include "common/model/stage/insert_trainer.h"

namespace cleave {
namespace {

struct PretrainOptions {
  RunOptions run;  // only its configuration and `json`
  std::string output = "inserts.safetensors";
  bool overwrite = false;  // replaces an existing file
  std::uint32_t samples = 640;
};

using Json = nlohmann::ordered_json;

void checkErrors(const std::vector<double>& errors, const ClientSettings& settings) {
  for (std::size_t n = 0; n < errors.size(); ++n) {
    if (std::isfinite(errors[n])) continue;
    throw RunError(
        "non-finite",
        fmt::format("the error of the insert at cut {} is not finite", settings.inserts[n].cut),
        "lower train.learning_rate.peak, or set train.optimizer to adam");
  }
}

// The batches of the training epochs 1, 2, …
class Batches {
 public:
  explicit Batches(const PreparedRun& run) : run_(run) {}

  // Calls use(batch, number) for about this many samples. The number counts all batches.
  template <typename Use>
  void forSamples(std::uint32_t samples, const Use& use) {
    for (std::uint32_t seen = 0; seen < samples;) {
      const Batch batch = next();
      seen += batch.samples();
      ++number_;
      withTorchErrors([&] { use(viewOf(batch), number_); });
    }
  }

 private:
  Batch next() {
    for (;;) {
      if (!loader_) {
        loader_.emplace(run_.data.train, pool_,
                        trainingOptions(run_.settings, run_.data, ++epoch_));
      }
      if (auto batch = loader_->next()) return std::move(*batch);
      loader_.reset();
    }
  }

  const PreparedRun& run_;
  const std::shared_ptr<BufferPool> pool_ = std::make_shared<BufferPool>(std::size_t{1} << 30);
  std::optional<Loader> loader_;
  std::uint64_t epoch_ = 0, number_ = 0;
};

// Trains for the run's epochs and steps. Returns the number of steps.
std::uint64_t train(InsertTrainer& trainer, const PreparedRun& run) {
  const LearningRateOptions rates = learningRateOptions(run.settings, *run.data.train);
  const std::uint64_t last = totalSteps(run.settings, *run.data.train);
  Batches batches(run);
  for (std::uint64_t step = 1; step <= last; ++step) {
    batches.forSamples(1, [&](const BatchView& batch, std::uint64_t number) {
      trainer.train(batch, number, learningRate(rates, number));
    });
  }
  return last;
}

// What an insert loses on the user's data, and the ranks that lose less.
Json describeFit(const InsertSpec& insert, const PrincipalComponents& components, double error) {
  Json ranks = Json::object();
  for (const double limit : {0.1, 0.03, 0.01, 0.003}) {
    ranks[fmt::format("{}", limit)] = components.rankFor(limit);
  }
  const auto& parameters = insert.parameters;
  const auto rank = parameters.contains("rank") ? parameters.at("rank") : parameters.at("channels");
  return {{"cut", insert.cut},
          {"kind", insert.kind},
          {"features", components.variances.size(0)},
          {"rank", static_cast<std::int64_t>(rank)},
          {"error", error},
          {"ranks", std::move(ranks)}};
}

void printFit(const Json& insert) {
  std::cout << fmt::format("cut {}: {} of {} features, error {:.4f} of the variance; ",
                           insert.at("cut").get<int>(), insert.at("rank").get<int>(),
                           insert.at("features").get<int>(), insert.at("error").get<double>());
  std::string text;
  for (const auto& [limit, rank] : insert.at("ranks").items()) {
    text += fmt::format("{}{} features for {}", text.empty() ? "" : ", ", rank.get<int>(), limit);
  }
  std::cout << text << '\n';
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
  Batches batches(run);
  const std::uint32_t samples = std::min(options.samples, run.data.train->size());
  batches.forSamples(samples, [&](const BatchView& batch, std::uint64_t number) {
    trainer->observe(batch, number);
  });
  withTorchErrors([&] { trainer->solve(); });
  const std::uint64_t steps = trainer->needsTraining() ? train(*trainer, run) : 0;
  batches.forSamples(samples, [&](const BatchView& batch, std::uint64_t number) {
    trainer->measure(batch, number);
  });
  const std::vector<double> errors = trainer->takeErrors();
  checkErrors(errors, run.settings);
  writeModel(options.output, run, trainer->weights());

  Json inserts = Json::array();
  const std::vector<PrincipalComponents> components = trainer->components();
  for (std::size_t n = 0; n < errors.size(); ++n) {
    inserts.push_back(describeFit(run.settings.inserts[n], components[n], errors[n]));
  }
  if (options.run.json) {
    const Json json = {
        {"output", options.output}, {"samples", samples}, {"steps", steps}, {"inserts", inserts}};
    std::cout << json.dump(2) << std::endl;
    return 0;
  }
  for (const Json& insert : inserts) printFit(insert);
  std::cout << fmt::format("\nTo train with them:\n  --set weights.file={}\n", options.output);
  return 0;
}

}  // namespace

void addPretrainCommand(CLI::App& app, std::function<int()>& command) {
  static PretrainOptions options;
  CLI::App* pretrain = app.add_subcommand(
      "pretrain-inserts", "Fits only the learned inserts, each to reproduce its input");
  addCommonOptions(*pretrain, options.run.common, true);
  pretrain
      ->add_option("--output", options.output,
                   "The safetensors file to write: the initial model with the fitted inserts")
      ->type_name("FILE")
      ->default_str("inserts.safetensors");
  pretrain->add_flag("--overwrite", options.overwrite, "Replaces the file if it exists");
  pretrain
      ->add_option("--samples", options.samples,
                   "Training samples for the principal components, and the next ones for the error")
      ->check(CLI::Range(1U, 1U << 24))
      ->type_name("N")
      ->capture_default_str();
  pretrain->add_flag("--json", options.run.json, "Prints the result as JSON");
  pretrain->footer(
      "Example:\n  cleave-client pretrain-inserts --config configs/inserts.yaml --output "
      "inserts.safetensors\n\nRuns in this process, without a server, with the initial weights and "
      "the data of the configuration. Inserts of kind residual are then trained, with the "
      "configuration's optimizer, learning rate and epochs. Start the run with --set "
      "weights.file=inserts.safetensors.\n\n"
      "Exit codes: 0 done, 1 failed, 2 usage error. More: docs/models.md.");
  pretrain->callback([&] { command = [&] { return pretrainInserts(options); }; });
}

}  // namespace cleave
