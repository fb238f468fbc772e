// cleave-client eval: evaluates a trained model on the test set.

#include <ATen/core/Tensor.h>
#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "client/commands/commands.h"
#include "client/evaluate/class_scores.h"
#include "client/evaluate/inference.h"
#include "common/core/durable.h"
#include "common/core/log.h"
#include "common/core/printable.h"
#include "common/core/units.h"
#include "common/files/sha256.h"

namespace cleave {
namespace {

using Json = nlohmann::ordered_json;

// Whether each sample has one class, so that the model returns [samples, classes].
bool classifiesSamples(const PreparedRun& run) {
  return findLoss(run.settings.scores.loss.name).target == TargetKind::classes &&
         run.plan.blocks.back().outputShape().size() == 1;
}

void addBatch(ClassScores& scores, const Batch& batch, const at::Tensor& output,
              std::int64_t ignored) {
  const auto classes = static_cast<std::size_t>(output.size(1));
  const float* values = output.const_data_ptr<float>();
  const auto* targets = reinterpret_cast<const std::int64_t*>(batch.arrays.back().memory.data());
  for (std::uint32_t n = 0; n < batch.samples(); ++n) {
    if (targets[n] != ignored) scores.add({values + n * classes, classes}, targets[n]);
  }
}

std::string shareText(const nlohmann::json& value) {
  return value.is_null() ? "-" : fmt::format("{:.1f} %", 100 * value.get<double>());
}

void printClassScores(const Json& json) {
  constexpr std::size_t kMaxClasses = 50, kMaxPairs = 5;
  const Json& classes = json.at("classes");
  std::size_t width = 5;
  for (const Json& each : classes) {
    width = std::max(width, each.at("name").get<std::string>().size());
  }
  std::cout << fmt::format("\n{:<{}}  {:>8}  {:>9}  {:>7}  {:>7}  {:>6}\n", "class", width,
                           "samples", "precision", "recall", "F1", "AUROC");
  for (std::size_t c = 0; c < std::min(classes.size(), kMaxClasses); ++c) {
    const Json& each = classes[c];
    const nlohmann::json area = each.at("auroc");
    std::cout << fmt::format("{:<{}}  {:>8}  {:>9}  {:>7}  {:>7}  {:>6}\n",
                             printable(each.at("name").get<std::string>()), width,
                             each.at("samples").get<std::uint64_t>(),
                             shareText(each.at("precision")), shareText(each.at("recall")),
                             shareText(each.at("f1")),
                             area.is_null() ? "-" : fmt::format("{:.4f}", area.get<double>()));
  }
  if (classes.size() > kMaxClasses) {
    std::cout << fmt::format("and {} more; --json lists all\n", classes.size() - kMaxClasses);
  }
  const Json& pairs = json.at("most_confused");
  for (std::size_t n = 0; n < std::min(pairs.size(), kMaxPairs); ++n) {
    std::cout << fmt::format("{}{} of class {} predicted as {}\n", n == 0 ? "\n" : "",
                             countText(pairs[n].at("samples").get<std::uint64_t>(), "sample"),
                             printable(pairs[n].at("class").get<std::string>()),
                             printable(pairs[n].at("predicted").get<std::string>()));
  }
  std::cout << fmt::format(
      "\ncalibration error {}: mean difference between confidence and accuracy\n",
      shareText(json.at("calibration").at("error")));
}

void print(const Json& json, const std::set<std::string>& shares, std::int64_t classes) {
  std::cout << fmt::format("model    {}\nsamples  {}\n", json.at("model").get<std::string>(),
                           json.at("samples").get<std::uint64_t>());
  for (const auto& [name, value] : json.at("metrics").items()) {
    if (isTrivial(name, classes)) continue;
    std::cout << fmt::format("{:<8} {}\n", name,
                             value.is_null() ? "-"
                             : shares.contains(name)
                                 ? fmt::format("{:.2f} %", 100 * value.get<double>())
                                 : fmt::format("{:.6g}", value.get<double>()));
  }
  if (json.contains("classes")) printClassScores(json);
}

// If the model is in a run's folder and was evaluated with the run's own configuration, stores the
// result in that folder, where `report` finds it.
void keepInRun(const Json& json, const InferenceOptions& options, const std::string& model) {
  const CommonOptions& common = options.run.common;
  if (!common.config.empty() || !common.overrides.empty()) return;
  const std::filesystem::path folder = std::filesystem::path(model).parent_path();
  std::error_code ignored;
  if (!std::filesystem::exists(folder / "run.json", ignored)) return;
  const std::string path = folder / "evaluation.json";
  try {
    writeFileDurably(path, json.dump(2) + "\n");
  } catch (const std::exception& error) {
    processLog()->warn("the report will lack this evaluation: {}", error.what());
  }
}

// The digest of the file that the evaluation reads, in hexadecimal; empty if it cannot be read.
std::string weightsDigest(const InferenceOptions& options) {
  const auto digest = sha256OfFile(modelFileOf(options.source, options.best));
  return digest ? hexOf(*digest) : "";
}

int evaluate(const InferenceOptions& options) {
  startLog("cleave-client", options.run.common.logLevel);
  const std::string digest = weightsDigest(options);
  Inference inference(options);
  // A run in progress may replace the file while it is read: then it is not known which was used.
  const bool isKnown = !digest.empty() && weightsDigest(options) == digest;
  const PreparedRun& run = inference.prepared();
  const ScoreSpec& spec = run.settings.scores;
  std::optional<ClassScores> scores;
  Inference::Visit addScores;
  if (classifiesSamples(run)) {
    scores.emplace(static_cast<std::size_t>(run.plan.blocks.back().outputShape().back()));
    addScores = [&](const Batch& batch, const at::Tensor& output, std::uint32_t) {
      addBatch(*scores, batch, output, spec.loss.ignoreIndex);
    };
  }
  const BatchMetrics sums = inference.run(addScores);

  Json json = {{"model", inference.modelPath()},
               {"weights_sha256", isKnown ? Json(digest) : Json()},
               {"steps", inference.modelSteps() ? Json(*inference.modelSteps()) : Json()},
               {"server", options.run.server},
               {"samples", sums.samples}};
  const std::vector<std::string> names = spec.names();
  const std::vector<std::optional<double>> values = metricValues(spec, sums);
  for (std::size_t n = 0; n < names.size(); ++n) {
    json["metrics"][names[n]] = values[n] ? Json(*values[n]) : Json();
  }
  if (scores && scores->samples() > 0) json.update(scores->toJson(inference.classNames()));
  if (options.run.json) {
    std::cout << json.dump(2) << std::endl;
  } else {
    print(json, spec.shares(), outputSize(run.plan));
  }
  keepInRun(json, options, inference.modelPath());
  return 0;
}

}  // namespace

void addInferenceOptions(CLI::App& command, InferenceOptions& options) {
  command
      .add_option("MODEL", options.source, "A run's folder, or a model file that a run has written")
      ->required();
  addRunOptions(command, options.run);
  command.remove_option(command.get_option("--run-dir"));
  command.get_option("--config")
      ->required(false)
      ->description("The configuration of the training run; default: the one in the model file");
  command.get_option("--server")
      ->description("Runs the middle layers on this server; default: all layers run locally");
  command.add_flag("--best", options.best,
                   "Uses the best model that the run kept (keep.best): model.best.safetensors");
}

void addEvalCommand(CLI::App& app, std::function<int()>& command) {
  static InferenceOptions options;
  CLI::App* eval = app.add_subcommand(
      "eval",
      "Evaluates a trained model: metrics, scores per class, confusion matrix, calibration");
  addInferenceOptions(*eval, options);
  eval->footer(
      "Example:\n  cleave-client eval runs/RUN --best\n  cleave-client eval model.safetensors "
      "--set data.test.images=other-images.gz --set data.test.labels=other-labels.gz\n\n"
      "Without --config and --set, also writes evaluation.json into the run's folder, which "
      "'cleave-client report' shows.\n\n"
      "Exit codes: 0 done, 1 failed, 2 usage error.");
  eval->callback([&] { command = [&] { return evaluate(options); }; });
}

}  // namespace cleave
