#include "client/evaluate/inference.h"

#include "client/data/samples/loader.h"
#include "client/train/samples_progress.h"
#include "common/core/log.h"
#include "common/device/torch_errors.h"
#include "common/resources/buffer.h"

namespace cleave {
namespace {

// Returns the options of a run that uses this model's configuration and weights.
RunOptions runOptions(const InferenceOptions& options, const std::string& model,
                      const std::optional<ModelDescription>& description,
                      const std::string& folder) {
  RunOptions run = options.run;
  CommonOptions& common = run.common;
  if (description) {
    common.config = model;
    common.configText = description->config;
  }
  common.overrides.insert(common.overrides.begin(),
                          {"weights={file: " + quotedYaml(model) + ", except: []}"});
  if (!run.server.empty()) run.runDir = folder + "/run";
  return run;
}

// Rejects a test set in --set if data.holdout or data.folds is set, because it would not be used.
void refuseTestSet(const std::vector<std::string>& overrides) {
  for (const std::string& override : overrides) {
    if (!override.starts_with("data.test.")) continue;
    throw UsageError("bad-config",
                     "--set " + override +
                         " has no effect: the model was trained without a test "
                         "set, with data.holdout or data.folds",
                     "add --set data.holdout=0 --set data.folds=0")
        .about("data.holdout");
  }
}

// The configuration in the model file; empty if the file has none.
std::string storedConfigOf(const InferenceOptions& options) {
  try {
    return openSavedModel(options.source, options.best).description.config;
  } catch (const UsageError&) {
    return "";
  }
}

}  // namespace

Inference::Inference(const InferenceOptions& options, const std::vector<std::string>& inputs) {
  std::vector<std::string> implied;
  if (options.run.common.config.empty()) {
    SavedModel saved = openSavedModel(options.source, options.best);
    modelPath_ = std::move(saved.path);
    description_ = std::move(saved.description);
  } else {
    modelPath_ = modelFileOf(options.source, options.best);
    implied = impliedOverrides(storedConfigOf(options));
  }
  const DataOpener open = [&](const DataSettings& settings) {
    if (!settings.hasTestSet()) refuseTestSet(options.run.common.overrides);
    const nlohmann::json learned =
        description_ ? description_->learned : openDatasets(settings).train->learned();
    const DataDigest trained = description_ ? description_->trainDigest : DataDigest();
    Datasets data = openForInference(settings, learned, inputs, trained);
    files_ = data.test;
    return data;
  };
  RunOptions run = runOptions(options, modelPath_, description_, folder_.path());
  run.common.overrides.insert(run.common.overrides.begin(), implied.begin(), implied.end());
  if (run.server.empty()) {
    prepared_ = resolveRun(run, Purpose::inference, open);
    setComputeThreads(prepared_.threads);
    whole_ = std::make_unique<WholeStage>(prepared_.plan.stage);
    whole_->importWeights(initialWeights(prepared_));
    return;
  }
  prepared_ = prepareRun(run, Purpose::inference, open);
  run_ = std::make_unique<TrainRun>(prepared_);
  run_->connect();
  orFail([&] {
    run_->start([](const std::vector<BodyDone>&) { return StepDecision(); }, {});
    run_->loadWeights();
  });
}

Inference::~Inference() = default;

// If `work` throws, notifies the server that the run has ended; without this, the server would wait
// for a new connection.
void Inference::orFail(const std::function<void()>& work) {
  try {
    work();
  } catch (...) {
    if (run_) run_->close("failed");
    throw;
  }
}

std::optional<std::uint64_t> Inference::modelSteps() const {
  return description_ ? std::optional(description_->steps) : std::nullopt;
}

std::vector<std::string> Inference::classNames() const {
  const std::vector<std::string>& names = prepared_.settings.data.classNames;
  if (!names.empty()) return names;
  return description_ ? description_->classes : data().classNames();
}

BatchMetrics Inference::run(const Visit& each) {
  Loader::Options options;
  options.batch = prepared_.settings.evalBatch;
  options.threads = prepared_.settings.data.threads;
  const auto pool =
      run_ ? run_->session().pool() : std::make_shared<BufferPool>(std::size_t{1} << 30);
  Loader loader(prepared_.data.test, pool, options);
  if (each && run_) run_->stage().keepOutputs();
  if (each && whole_) whole_->keepOutputs();
  BatchMetrics sum;
  SamplesProgress progress("eval", data().size());
  orFail([&] {
    std::uint32_t first = 0;
    for (std::uint64_t step = 1; const auto batch = loader.next(); ++step) {
      if (run_) {
        run_->runBatch(Phase::eval, step, *batch);
        sum.add(run_->stage().metrics(step));
        if (each) each(*batch, run_->stage().outputs(step), first);
      } else {
        withTorchErrors([&] {
          whole_->runBatch(Phase::eval, step, prepared_.settings.microBatches, viewOf(*batch));
        });
        sum.add(whole_->metrics());
        if (each) each(*batch, whole_->outputs(), first);
      }
      first += batch->samples();
      progress.show(first);
    }
  });
  if (run_) run_->close("done");
  return sum;
}

}  // namespace cleave
