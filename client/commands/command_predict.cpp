// cleave-client predict: writes a trained model's predictions for new samples.

#include <ATen/core/Tensor.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "client/commands/commands.h"
#include "client/commands/output_file.h"
#include "client/evaluate/class_scores.h"
#include "client/evaluate/inference.h"
#include "common/core/durable.h"
#include "common/core/log.h"
#include "common/core/printable.h"
#include "common/files/record.h"
#include "common/model/blocks.h"

namespace cleave {
namespace {

struct PredictOptions {
  InferenceOptions inference;
  std::vector<std::string> inputs;
  std::string output;      // file path; empty: stdout
  bool overwrite = false;  // replaces an existing file
  bool raw = false;        // the model's outputs instead of classes and probabilities
};

// The temporary file's name. If `path` is a device or a pipe, this is `path` itself, because
// renaming a file to it would replace it.
std::string temporaryFor(const std::string& path) {
  return isDeviceOrPipe(path) ? path : path + ".new-" + std::to_string(::getpid());
}

// Writes rows to a temporary file beside `path`, which replaces `path` when all rows are written.
// If `path` is empty, writes to stdout.
class RowFile {
 public:
  explicit RowFile(const std::string& path) : path_(path), temporary_(temporaryFor(path)) {
    if (path_.empty()) return;
    file_ = std::fopen(temporary_.c_str(), temporary_ == path_ ? "w" : "wx");
    if (file_ == nullptr) throwCannotWrite(path_, "the file could not be created", errno);
  }
  ~RowFile() {
    if (file_ == nullptr) return;
    std::fclose(file_);
    removeTemporary();
  }
  RowFile(const RowFile&) = delete;
  RowFile& operator=(const RowFile&) = delete;

  // A file or a pipe gets the exact text, a terminal an escaped one.
  void write(const std::string& row) {
    std::FILE* const file = file_ != nullptr ? file_ : stdout;
    const std::string text = isTerminal_ ? escaped(row) : row;
    if (std::fwrite(text.data(), 1, text.size(), file) != text.size()) fail();
  }
  void finish() {
    if (file_ == nullptr) {
      if (std::fflush(stdout) != 0) fail();
      return;
    }
    const int closed = std::fclose(std::exchange(file_, nullptr));
    if (closed == 0 && temporary_ == path_) return;
    if (closed != 0 || std::rename(temporary_.c_str(), path_.c_str()) != 0) {
      const int error = errno;
      removeTemporary();
      throwCannotWrite(path_, "the predictions could not be written", error);
    }
  }

 private:
  void removeTemporary() const {
    if (temporary_ != path_) std::remove(temporary_.c_str());
  }
  [[noreturn]] void fail() const {
    throwCannotWrite(path_.empty() ? "stdout" : path_, "the predictions could not be written",
                     errno);
  }

  const std::string path_, temporary_;
  const bool isTerminal_ = path_.empty() && ::isatty(STDOUT_FILENO) != 0;
  std::FILE* file_ = nullptr;
};

// Formats the CSV header and the row of a sample. The columns depend on the model's loss.
class PredictionColumns {
 public:
  PredictionColumns(const PreparedRun& run, std::vector<std::string> names, bool raw)
      : kind_(findLoss(run.settings.scores.loss.name).target), names_(std::move(names)), raw_(raw) {
    constexpr std::size_t kMaxValues = 100'000;
    const Shape& shape = run.plan.blocks.back().outputShape();
    values_ = 1;
    for (const std::int64_t extent : shape) values_ *= static_cast<std::size_t>(extent);
    const bool isPerSample = kind_ != TargetKind::classes || shape.size() == 1;
    if (kind_ != TargetKind::none && isPerSample && values_ <= kMaxValues) return;
    throw UsageError("no-predict",
                     fmt::format("the model returns {} per sample, and its loss is {}: predict "
                                 "writes one class, or one row of numbers, per sample",
                                 toString(shape), run.settings.scores.loss.name),
                     "load the model in PyTorch: docs/take_home.md");
  }

  std::string header() const {
    std::string text = "sample";
    if (isClass()) text += ",class,probability";
    const std::string prefix = isClass() ? "p " : "output ";
    for (std::size_t v = 0; v < shownValues(); ++v) {
      text += "," + formatCell(values_ == 1 ? "output" : prefix + classNameOf(names_, v));
    }
    return text + "\n";
  }

  // The row of a sample that could not be read.
  std::string emptyRow(const std::string& sample) const {
    return formatCell(sample) + std::string(shownValues() + (isClass() ? 2 : 0), ',') + "\n";
  }

  std::string row(const std::string& sample, std::span<const float> outputs) const {
    std::string text = formatCell(sample);
    if (isClass()) {
      const std::vector<double> probabilities = softmax(outputs);
      const auto highest = std::max_element(probabilities.begin(), probabilities.end());
      text += fmt::format(",{},{:.6f}",
                          formatCell(classNameOf(
                              names_, static_cast<std::size_t>(highest - probabilities.begin()))),
                          *highest);
      for (std::size_t v = 0; v < shownValues(); ++v) {
        text += fmt::format(",{:.6f}", probabilities[v]);
      }
      return text + "\n";
    }
    for (const float output : outputs) {
      const bool isLabel = kind_ == TargetKind::labels && !raw_;
      text += isLabel ? fmt::format(",{:.6f}", 1 / (1 + std::exp(-double{output})))
                      : fmt::format(",{:.9g}", output);  // all digits of a float
    }
    return text + "\n";
  }

  std::size_t values() const { return values_; }

 private:
  static constexpr std::size_t kMaxColumns = 1000;
  bool isClass() const { return kind_ == TargetKind::classes && !raw_; }
  std::size_t shownValues() const { return isClass() && values_ > kMaxColumns ? 0 : values_; }

  TargetKind kind_;
  std::vector<std::string> names_;
  bool raw_;
  std::size_t values_ = 0;  // outputs per sample
};

int writePredictions(const PredictOptions& options) {
  startLog("cleave-client", options.inference.run.common.logLevel);
  if (!options.output.empty() && !isDeviceOrPipe(options.output)) {
    checkOutputFile(options.output, options.overwrite, "predictions.csv");
  }
  Inference inference(options.inference, options.inputs);
  const PredictionColumns columns(inference.prepared(), inference.classNames(), options.raw);
  RowFile file(options.output);
  inference.run([&](const Batch& batch, const at::Tensor& output, std::uint32_t first) {
    const float* values = output.const_data_ptr<float>();
    const std::set<std::uint32_t> replaced = inference.replaced();
    if (first == 0) file.write(columns.header());  // nothing, if the first samples fail
    for (std::uint32_t n = 0; n < batch.samples(); ++n) {
      const std::string sample = inference.data().sampleName(first + n);
      file.write(replaced.contains(first + n)
                     ? columns.emptyRow(sample)
                     : columns.row(sample, {values + n * columns.values(), columns.values()}));
    }
  });
  file.finish();
  if (options.output.empty()) return 0;
  const std::size_t damaged = inference.replaced().size();
  const std::size_t predicted = inference.data().size() - damaged;
  if (options.inference.run.json) {
    const nlohmann::ordered_json json = {{"output", options.output},
                                         {"model", inference.modelPath()},
                                         {"predictions", predicted},
                                         {"damaged", damaged}};
    std::cout << json.dump(2) << std::endl;
    return 0;
  }
  std::cout << fmt::format(
      "{}: {} predictions by {}{}\n", options.output, predicted, inference.modelPath(),
      damaged == 0 ? "" : fmt::format("; none for {} damaged samples", damaged));
  return 0;
}

// Errors about the samples in --input say what helps here.
int predict(const PredictOptions& options) {
  try {
    return writePredictions(options);
  } catch (const UsageError& error) {
    if (options.inputs.empty() || error.key() != kSkipKey) throw;
    throw UsageError(error, error.what(),
                     "replace or remove it, or add --set data.skip=N to leave the cells of up to N "
                     "such samples empty");
  }
}

}  // namespace

void addPredictCommand(CLI::App& app, std::function<int()>& command) {
  static PredictOptions options;
  CLI::App* predictions =
      app.add_subcommand("predict", "Writes a trained model's predictions for new samples, as CSV");
  addInferenceOptions(*predictions, options.inference);
  predictions->get_option("--json")->description(
      "With --output: prints the numbers of predictions and of damaged samples as JSON");
  predictions
      ->add_option("--input", options.inputs,
                   "Files and folders of samples without labels, in the run's data format; "
                   "repeatable; default: the test set")
      ->type_name("PATH");
  auto* output =
      predictions->add_option("--output", options.output, "CSV file to write; default: stdout")
          ->type_name("FILE");
  predictions->get_option("--json")->needs(output);
  predictions->add_flag("--overwrite", options.overwrite, "Replaces the file if it exists");
  predictions->add_flag("--raw", options.raw,
                        "Writes the model's outputs at full precision instead of classes and "
                        "probabilities");
  predictions->footer(
      "Columns: sample; for classes: class, probability, and the probability of each class; for "
      "labels: the probability of each label; for numbers: output.\n\nExample:\n  cleave-client "
      "predict runs/RUN --best --input photos/ --output predictions.csv\n\n"
      "After an error, stdout has the rows before it, or nothing; a file is only written when it "
      "is "
      "complete.\n\nExit codes: 0 done, 1 failed, 2 usage error.");
  predictions->callback([&] { command = [&] { return predict(options); }; });
}

}  // namespace cleave
