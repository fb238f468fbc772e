// cleave-client export: writes a trained model as a file for other programs.

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "client/commands/commands.h"
#include "client/commands/output_file.h"
#include "client/evaluate/merge.h"
#include "client/run/saved_model.h"
#include "common/core/bytes.h"
#include "common/core/durable.h"
#include "common/core/log.h"
#include "common/core/units.h"

namespace cleave {
namespace {

struct ExportOptions {
  std::string source;  // the folder of a run, or a model file
  bool best = false;
  std::string output;
  bool overwrite = false;
  bool json = false;
};

std::string readAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(file), {});
  if (file.is_open() && !file.bad()) return bytes;
  throw UsageError("no-model", "cannot read the model " + path, "check the file's permissions");
}

// The name in a model file may come from an untrusted source: it must not point to another folder.
std::string fileNameOf(std::string name) {
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_') c = '-';
  }
  return name.empty() ? "model" : name;
}

// The Python lines that load the file.
std::string pythonLines(const std::string& path, bool hasInserts) {
  return "from safetensors.torch import load_file\nmodel.load_state_dict(load_file(\"" + path +
         "\"), strict=" +
         (hasInserts ? "False)  # the original model lacks the learned inserts\n" : "True)\n");
}

int exportModel(const ExportOptions& options) {
  startLog("cleave-client", "warn");
  const SavedModel saved = openSavedModel(options.source, options.best);
  const ModelDescription& description = saved.description;
  const std::string output =
      options.output.empty() ? fileNameOf(description.run) + ".safetensors" : options.output;
  checkOutputFile(output, options.overwrite, "model.safetensors");
  const std::string bytes = readAll(saved.path);
  const std::vector<SafetensorsEntry> entries =
      readSafetensors(std::as_bytes(std::span(bytes)), saved.path);
  std::deque<std::vector<float>> memory;
  const std::vector<SafetensorsEntry> model =
      mergeAdapters(entries, description.loraScale, description.inputsFirst, memory);
  // The metadata of a merged model omits the configuration, because the configuration would add the
  // adapters a second time.
  const bool isMerged = !memory.empty();
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  if (!isMerged) metadata = description.toMetadata();
  const std::vector<std::byte> file = writeSafetensors(model, metadata);
  writeFileDurably(output, textOf(file));

  std::int64_t values = 0;
  for (const SafetensorsEntry& entry : model) {
    std::int64_t count = 1;
    for (const std::int64_t extent : entry.shape) count *= extent;
    values += count;
  }
  const std::string adapter =
      std::filesystem::path(saved.path).parent_path() / (options.best ? "adapter.best" : "adapter");
  std::error_code ignored;
  const bool hasAdapter = isMerged && std::filesystem::exists(adapter, ignored);
  if (options.json) {
    nlohmann::ordered_json json = {{"output", output},           {"model", saved.path},
                                   {"steps", description.steps}, {"tensors", model.size()},
                                   {"values", values},           {"bytes", file.size()},
                                   {"adapters_merged", isMerged}};
    if (hasAdapter) json["adapter"] = adapter;
    std::cout << json.dump(2) << std::endl;
    return 0;
  }
  std::cout << fmt::format("{}: {} tensors, {} values, {}, after {} steps{}\n\n", output,
                           model.size(), values, bytesText(static_cast<double>(file.size())),
                           description.steps, isMerged ? "; the adapters are merged into it" : "");
  const bool hasInserts = std::any_of(model.begin(), model.end(), [](const auto& entry) {
    return entry.name.starts_with("insert.");
  });
  std::cout << pythonLines(output, hasInserts);
  if (hasAdapter) {
    std::cout << "\nOr the adapters alone, with the original model:\n"
              << "model = peft.PeftModel.from_pretrained(model, \"" << adapter << "\")\n";
  }
  std::cout << std::flush;
  return 0;
}

}  // namespace

void addExportCommand(CLI::App& app, std::function<int()>& command) {
  static ExportOptions options;
  CLI::App* exported = app.add_subcommand(
      "export", "Writes a trained model as a safetensors file that PyTorch loads");
  exported
      ->add_option("MODEL", options.source,
                   "A run's folder, or a model file that a run has written")
      ->required();
  exported
      ->add_option("--output", options.output,
                   "The file to write; default: NAME.safetensors, with the run's name")
      ->type_name("FILE");
  exported->add_flag("--best", options.best,
                     "Uses the best model that the run kept (keep.best): model.best.safetensors");
  exported->add_flag("--overwrite", options.overwrite, "Replaces the file if it exists");
  exported->add_flag("--json", options.json, "Prints the result as JSON");
  exported->footer(
      "The tensors have the names of the original PyTorch model. Adapters (LoRA) are merged into "
      "the weights; the folder 'adapter' of the run contains only the adapters, for Hugging Face "
      "PEFT.\n\n"
      "Example:\n  cleave-client export runs/RUN --best --output model.safetensors\n\n"
      "Exit codes: 0 done, 1 failed, 2 usage error. More: docs/take_home.md.");
  exported->callback([&] { command = [&] { return exportModel(options); }; });
}

}  // namespace cleave
