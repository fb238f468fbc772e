// cleave-client pretrain-inserts: fits the learned inserts to the model and the data, before a run.

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "client/commands/commands.h"
#include "client/commands/output_file.h"
#include "client/config/learning_rate.h"
#include "client/data/samples/loader.h"
#include "client/run/saved_model.h"
#include "client/run/temporary_folder.h"
#include "client/train/train_run.h"
#include "common/core/bytes.h"
#include "common/core/durable.h"
#include "common/core/log.h"
#include "common/device/torch_errors.h"
#include "common/model/stage/insert_inputs.h"
#include "common/model/stage/insert_trainer.h"

namespace cleave {
namespace {

struct PretrainOptions {
  RunOptions run;  // not its folder
  std::string output = "inserts.safetensors";
  bool overwrite = false;  // replaces an existing file
  std::uint32_t samples = 640;
};

using Json = nlohmann::ordered_json;

// Where the tensors at the cuts come from. Counts its batches, from 1, as the steps of a run.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  void forEach(const Batch& batch, const UseInsertInput& use) {
    withTorchErrors([&] { compute(batch, ++number_, use); });
  }
  // Call it once, at the end. `reason`: as for TrainRun::close().
  virtual void close(const std::string& /*reason*/) {}

 private:
  virtual void compute(const Batch& batch, std::uint64_t number, const UseInsertInput& use) = 0;

  std::uint64_t number_ = 0;
};

// The model's layers up to the last insert, in this process.
class OwnTensors : public TensorSource {
 public:
  OwnTensors(const PreparedRun& run, const std::set<std::uint32_t>& cuts)
      : tensors_(run.plan.stage, cuts, initialWeights(run)) {}

 private:
  void compute(const Batch& batch, std::uint64_t number, const UseInsertInput& use) override {
    tensors_.forEach(viewOf(batch), number, use);
  }

  InsertInputs tensors_;
};

// Plans the run without its inserts, and with all else frozen, so that no gradient crosses a cut.
void keepForwardOnly(PreparedRun& run) {
  if (!run.settings.defences.empty()) {
    throw UsageError("bad-defence",
                     "pretrain-inserts sends activations to the server without privacy.defence",
                     "--set 'privacy.defence=[]', if you trust the server; or omit --server")
        .about("privacy.defence");
  }

  ClientSettings& settings = run.settings;
  settings.inserts.clear();
  settings.freeze.clear();
  settings.optimizer.groups.clear();
  settings.groupRates.clear();
  settings.staleness = settings.inFlight = 0;
  settings.quality.every = 0;
  settings.weights.partial = true;  // the file, which has been checked, may have inserts
  RunSpec spec = makeRunSpec(settings, run.data, run.userModel.get());
  spec.freeze = {"*"};
  spec.headIsFrozen = true;
  std::erase_if(spec.codecs, [](const auto& codec) {
    return flowFromName(codec.first)->kind == FlowKind::gradient;
  });
  planFor(run, spec);
  placeCodecs(run);
}

// The head in this process, and the body on the server: steps that change nothing.
class ServedTensors : public TensorSource {
 public:
  // Keeps only the run's forward. Connects to the server.
  ServedTensors(PreparedRun& run, std::set<std::uint32_t> cuts)
      : prepared_(run), cuts_(std::move(cuts)) {
    keepForwardOnly(run);
    run_.emplace(run);
    run_->connect();
    try {
      run_->start([](const std::vector<BodyDone>& bodies) { return skipped(bodies.front().step); },
                  {});
      run_->loadWeights();
    } catch (...) {
      run_->close("failed");
      throw;
    }
  }
  void close(const std::string& reason) override { run_->close(reason); }

 private:
  void compute(const Batch& batch, std::uint64_t number, const UseInsertInput& use) override {
    const RunPlan& plan = prepared_.plan;
    run_->stage().observeCuts([&](int cut, const MicroBatch& at, const TensorList& tensors) {
      if (!cuts_.contains(static_cast<std::uint32_t>(cut))) return;
      const std::size_t t = encodedTensor(outputsAt(plan.blocks, plan.stage.cuts, cut));
      use(static_cast<std::uint32_t>(cut), tensors[t].cpu(), at);
    });
    run_->runBatch(Phase::train, number, batch);
  }

  static StepDecision skipped(std::uint64_t step) {
    StepDecision decision;
    decision.step = step;
    decision.apply = false;
    decision.learningRates = {0};
    return decision;
  }

  const PreparedRun& prepared_;
  const std::set<std::uint32_t> cuts_;
  std::optional<TrainRun> run_;
};

void checkErrors(const std::vector<InsertError>& errors, const std::vector<InsertSpec>& inserts) {
  for (std::size_t n = 0; n < errors.size(); ++n) {
    if (std::isfinite(errors[n].own) && std::isfinite(errors[n].atCut)) continue;
    throw RunError("non-finite",
                   fmt::format("the error of the insert at cut {} is not finite", inserts[n].cut),
                   "lower train.learning_rate.peak, or set train.optimizer to adam");
  }
}

// The batches of the training epochs 1, 2, …
class Batches {
 public:
  Batches(const ClientSettings& settings, const Datasets& data, TensorSource& source)
      : settings_(settings), data_(data), source_(source) {}

  // Uses the tensors of the next batches, of about this many samples.
  void forSamples(std::uint32_t samples, const UseInsertInput& use) {
    for (std::uint32_t seen = 0; seen < samples;) {
      const Batch batch = next();
      seen += batch.samples();
      source_.forEach(batch, use);
    }
  }

 private:
  Batch next() {
    for (;;) {
      if (!loader_) {
        loader_.emplace(data_.train, pool_, trainingOptions(settings_, data_, ++epoch_));
      }
      if (auto batch = loader_->next()) return std::move(*batch);
      loader_.reset();
    }
  }

  const ClientSettings& settings_;
  const Datasets& data_;
  TensorSource& source_;
  const std::shared_ptr<BufferPool> pool_ = std::make_shared<BufferPool>(std::size_t{1} << 30);
  std::optional<Loader> loader_;
  std::uint64_t epoch_ = 0;
};

class Fitting {
 public:
  // `samples`: for the components of each level, and for the errors. All are borrowed.
  Fitting(InsertTrainer& trainer, const ClientSettings& settings, const Datasets& data,
          TensorSource& source, std::uint32_t samples)
      : trainer_(trainer),
        settings_(settings),
        data_(data),
        source_(source),
        samples_(samples),
        batches_(settings, data, source) {}

  // Fits the inserts level by level. Returns the number of training steps.
  std::uint64_t fit() {
    std::uint64_t steps = 0;
    for (std::size_t level = 0; level < trainer_.levels(); ++level) {
      batches_.forSamples(samples_, [&](std::uint32_t cut, const at::Tensor& x, const MicroBatch&) {
        trainer_.observe(level, cut, x);
      });
      withTorchErrors([&] { trainer_.solve(level); });
      if (trainer_.needsTraining(level)) steps += train(level);
    }
    return steps;
  }

  // On further samples.
  std::vector<InsertError> measure() {
    batches_.forSamples(samples_, [&](std::uint32_t cut, const at::Tensor& x, const MicroBatch&) {
      trainer_.measure(cut, x);
    });
    return trainer_.errors();
  }

 private:
  // For the run's epochs and steps.
  std::uint64_t train(std::size_t level) {
    const LearningRateOptions rates = learningRateOptions(settings_, data_.train->size());
    const std::uint64_t last = totalSteps(settings_, data_.train->size());
    Batches batches(settings_, data_, source_);
    for (std::uint64_t step = 1; step <= last; ++step) {
      batches.forSamples(1, [&](std::uint32_t cut, const at::Tensor& x, const MicroBatch& at) {
        trainer_.addGradients(level, cut, x, at.batch.count);
      });
      withTorchErrors([&] { trainer_.update(level, step, learningRate(rates, step)); });
    }
    return last;
  }

  InsertTrainer& trainer_;
  const ClientSettings& settings_;
  const Datasets& data_;
  TensorSource& source_;
  const std::uint32_t samples_;
  Batches batches_;
};

// What an insert loses on the user's data, and the ranks that lose less.
Json describeFit(const InsertSpec& insert, const PrincipalComponents& components,
                 const InsertError& error) {
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
          {"error", error.own},
          {"error_at_cut", error.atCut},
          {"ranks", std::move(ranks)}};
}

void printFit(const Json& insert) {
  const double error = insert.at("error"), atCut = insert.at("error_at_cut");
  std::cout << fmt::format("cut {}: {} of {} features, error {:.4f} of the variance{}; ",
                           insert.at("cut").get<int>(), insert.at("rank").get<int>(),
                           insert.at("features").get<int>(), error,
                           error == atCut ? "" : fmt::format(", {:.4f} of the cut's", atCut));
  std::string text;
  for (const auto& [limit, rank] : insert.at("ranks").items()) {
    text += fmt::format("{}{} features for {}", text.empty() ? "" : ", ", rank.get<int>(), limit);
  }
  std::cout << text << '\n';
}

void writeModel(const std::string& path, const ModelDescription& description,
                const std::vector<NamedTensor>& weights) {
  const std::vector<std::byte> plain = toSafetensors(weights);
  const std::vector<std::byte> file =
      writeSafetensors(readSafetensors(plain, path), description.toMetadata());
  writeFileDurably(path, textOf(file));
}

// The tensors of the first cut need the head only.
std::unique_ptr<TensorSource> sourceOf(PreparedRun& run, const std::set<std::uint32_t>& cuts) {
  if (run.servers.empty() || *cuts.rbegin() == 0) return std::make_unique<OwnTensors>(run, cuts);
  return std::make_unique<ServedTensors>(run, cuts);
}

PreparedRun prepareFitting(const RunOptions& options, const TemporaryFolder& folder) {
  if (options.server.empty()) return resolveRun(options, Purpose::inference);
  RunOptions run = options;
  run.runDir = folder.path() + "/run";
  PreparedRun prepared = prepareRun(run, Purpose::inference);
  if (prepared.settings.bodies() == 1) return prepared;
  throw UsageError("several-servers",
                   fmt::format("pretrain-inserts computes with one server, but model.cuts divides "
                               "the model among {}",
                               prepared.settings.bodies()),
                   "omit --server: the client then computes the model alone");
}

int pretrainInserts(const PretrainOptions& options) {
  startLog("cleave-client", options.run.common.logLevel);
  checkOutputFile(options.output, options.overwrite, "inserts.safetensors");
  const TemporaryFolder folder;
  PreparedRun run = prepareFitting(options.run, folder);
  const ClientSettings settings = run.settings;
  const ModelDescription description = describeModel(run);
  setComputeThreads(run.threads);
  const auto trainer = withTorchErrors(
      [&] { return std::make_unique<InsertTrainer>(run.plan.stage, initialWeights(run)); });
  const std::uint32_t samples = std::min(options.samples, run.data.train->size());
  const auto source = withTorchErrors([&] { return sourceOf(run, trainer->cuts()); });
  std::uint64_t steps = 0;
  std::vector<InsertError> errors;
  try {
    Fitting fitting(*trainer, settings, run.data, *source, samples);
    steps = fitting.fit();
    errors = fitting.measure();
    checkErrors(errors, settings.inserts);
  } catch (...) {
    source->close("failed");  // else the server would wait for a new connection
    throw;
  }
  source->close("done");
  writeModel(options.output, description, trainer->weights());

  Json inserts = Json::array();
  const std::vector<PrincipalComponents> components = trainer->components();
  for (std::size_t n = 0; n < errors.size(); ++n) {
    inserts.push_back(describeFit(settings.inserts[n], components[n], errors[n]));
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
  addRunOptions(*pretrain, options.run);
  pretrain->remove_option(pretrain->get_option("--run-dir"));
  pretrain->get_option("--server")
      ->description(
          "Computes the middle layers on this server; default: all layers up to the last "
          "insert run locally");
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
  pretrain->footer(
      "Example:\n  cleave-client pretrain-inserts --config configs/inserts.yaml --output "
      "inserts.safetensors\n\nUses the initial weights and the data of the configuration. Inserts "
      "of kind residual are then trained, with the configuration's optimizer, learning rate and "
      "epochs. With --server, the tensors at the second cut come from the server, uncompressed, "
      "and "
      "the result is bit-identical if the server computes with as many threads. Start the run with "
      "--set weights.file=inserts.safetensors.\n\n"
      "Exit codes: 0 done, 1 failed, 2 usage error. More: docs/models.md.");
  pretrain->callback([&] { command = [&] { return pretrainInserts(options); }; });
}

}  // namespace cleave
