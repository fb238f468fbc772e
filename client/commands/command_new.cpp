// cleave-client new: writes a first configuration for the user's data and model.

#include <spdlog/fmt/fmt.h>
#include <spdlog/logger.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>

#include "client/commands/commands.h"
#include "client/commands/output_file.h"
#include "client/data/formats/encoded_images.h"
#include "client/data/samples/inspect.h"
#include "client/run/prepare.h"
#include "client/start/data_description.h"
#include "client/start/first_config.h"
#include "client/start/found_data.h"
#include "common/core/durable.h"
#include "common/core/log.h"
#include "common/core/printable.h"
#include "common/device/torch_errors.h"
#include "common/graph/suggested_cuts.h"
#include "common/model/graph/graph_file.h"

namespace cleave {
namespace {

struct NewOptions {
  std::string data, model;             // paths; `model` may be empty
  std::string label;                   // a column; empty: it is detected
  std::vector<std::string> overrides;  // --set
  std::string output;                  // a file path; empty: named after the data
  bool overwrite = false;              // replaces an existing file
};

namespace fs = std::filesystem;

// ---- The user's model ----

struct OwnModel {
  std::string file;
  std::vector<wire::Value> inputs;
  SuggestedCuts cuts;
};

OwnModel readModel(const std::string& path) {
  const auto file = withTorchErrors([&] { return std::make_unique<GraphFile>(path); });
  const wire::Graph& graph = file->graph();
  auto cuts = suggestCuts(graph, GraphCuts(graph));
  if (!cuts) {
    throw UsageError(
        "bad-cuts",
        path +
            " has no two cuts to suggest: one tensor must cross each, and the first must be "
            "behind a layer that computes with parameters",
        fmt::format("see the possible cuts and the reasons against others: "
                    "cleave-client models show {} --all",
                    path));
  }
  OwnModel model{path, {}, std::move(*cuts)};
  for (const std::uint32_t id : graph.inputs()) {
    model.inputs.push_back(graph.values(static_cast<int>(id)));
  }
  return model;
}

// The images that the model takes; empty if it takes none.
std::optional<ImageInput> imagesOf(const std::optional<OwnModel>& model) {
  if (!model || model->inputs.size() != 1 || model->inputs[0].shape_size() != 4)
    return std::nullopt;
  const wire::Value& input = model->inputs[0];
  return ImageInput{input.shape(1), input.shape(2), input.shape(3)};
}

// ---- The data ----

struct OpenedData {
  DataSettings settings;
  std::shared_ptr<const Dataset> train;
  std::vector<ImageHeader> sizes;  // of some images; empty if the samples are no images
};

// Reads the sizes of some of the image files that the names of the samples give. Files in archives
// are not read; they count as photos.
std::vector<ImageHeader> sizesOfFiles(const Dataset& data) {
  constexpr std::uint32_t kFiles = 64;
  std::vector<ImageHeader> sizes;
  for (const std::uint32_t index : spreadIndices(data.size(), kFiles)) {
    try {
      const std::string name = data.sampleName(index);
      sizes.push_back(readImageHeader(readImageFile(name), name));
    } catch (const UsageError&) {
      continue;
    }
  }
  constexpr std::int64_t kPhoto = 512;
  if (sizes.empty()) sizes.push_back({kPhoto, kPhoto});
  return sizes;
}

// Throws UsageError for the overrides too.
OpenedData openTraining(FirstConfig draft) {
  std::vector<std::string> overrides;
  overrides.swap(draft.overrides);  // the errors are about --set, not about a line
  Config config = Config::parse(yamlOf(draft), "the new configuration", overrides);
  DataSettings settings = readClientSettings(config).data;
  settings.keys.needsTest = false;
  const auto open = [&]() -> std::shared_ptr<const Dataset> {
    return findDataFormat(settings.format).open(settings.keys, DataSplit::train);
  };
  OpenedData opened;
  opened.settings = settings;
  try {
    opened.train = open();
  } catch (const UsageError& error) {
    if (error.key() != kResizeKey) throw;
    processLog()->set_level(spdlog::level::err);  // the warnings have been printed
    settings.keys.image.resize = 1;  // only the number of samples and their classes are needed
    opened.train = open();
    opened.sizes = sizesOfFiles(*opened.train);
    return opened;
  }
  const SampleArray first = opened.train->arrays().front();
  const bool isImage = first.dtype == DType::f32 && first.shape.size() == 3;
  if (isImage && draft.data.format != "tensors") {
    opened.sizes.push_back({first.shape[1], first.shape[2]});
  }
  return opened;
}

// IDX files do not say how many classes there are.
int classesOf(const Dataset& data) {
  std::int64_t max = 1;
  for (std::uint32_t index = 0; index < data.size(); ++index) {
    max = std::max(max, data.label(index).value_or(0));
  }
  return static_cast<int>(max + 1);
}

// ---- The configuration ----

// Whether --set gives this key, or keys below it. "model=": the whole section.
bool isSet(const FirstConfig& config, const std::string& key) {
  return std::any_of(config.overrides.begin(), config.overrides.end(), [&](const auto& each) {
    return each.starts_with(key) &&
           (key.ends_with('=') || each[key.size()] == '=' || each[key.size()] == '.');
  });
}

[[noreturn]] void throwNoInputs(const FoundData& found, const std::string& path) {
  const auto& [column, reason] = found.ignored.front();
  throw UsageError(
      "unknown-data",
      fmt::format("no column of {} is an input: {} has {}", path, printable(column, 60),
                  reason.substr(0, reason.find(';'))),
      "for texts, put the tokenizer.json of a model of texts into the folder of the table, and add "
      "--model FILE (docs/data.md#texts-with-labels); to use columns anyway, add --set "
      "data.numeric=[NAME] or --set data.categorical=[NAME]");
}

[[noreturn]] void throwNeedsModel(const std::string& why) {
  throw UsageError(
      "no-model-file", why + ", so a model of your own is needed",
      "export it from PyTorch with cleave_split.export (docs/models.md), then add --model "
      "FILE");
}

void chooseOwnModel(const OwnModel& model, FirstConfig& config) {
  config.model = {{"name", "graph"},
                  {"file", yamlScalar(model.file)},
                  {"cuts", fmt::format("[{}, {}]", yamlScalar(model.cuts.first.names.front()),
                                       yamlScalar(model.cuts.last.names.front()))}};
  config.modelComments = {
      "The client computes up to the end of the first of these modules, and after the end of the "
      "second; the server what is in between. Why these: " +
          model.cuts.reason() + ".",
      "All possible cuts: cleave-client models show " + model.file +
          ". The fastest ones for a link: cleave-client plan."};
}

// For a target that is a number.
[[noreturn]] void throwNeedsRegression(const std::string& file, const std::string& label) {
  throw UsageError(
      "no-model-file",
      fmt::format("the target, the column {} of {}, has numbers rather than classes (regression), "
                  "and the built-in models are for classes",
                  label, file),
      "export a model with one output from PyTorch with cleave_split.export (docs/models.md), then "
      "add "
      "--model FILE; if the target is another column, add --label COLUMN");
}

void chooseBuiltIn(const OpenedData& opened, FirstConfig& config) {
  const Dataset& train = *opened.train;
  const DataFormatKeys& keys = opened.settings.keys;
  if (keys.targetType == "number") throwNeedsRegression(keys.trainFile, keys.labelColumn);
  if (train.classes() == 0) throwNeedsModel("the built-in models are for classes");
  if (config.images) {
    config.model = {{"name", config.images->builtIn}};
    config.modelComments = {
        "A built-in model, trained from random weights. For your own PyTorch "
        "model: cleave-client new --model FILE."};
  } else if (train.arrays().size() == 2 && train.arrays()[0].dtype == DType::f32) {
    config.model = {{"name", "mlp"}, {"width", "64"}};
    config.modelComments = {
        "Layers of 64 units. For your own PyTorch model: cleave-client new "
        "--model FILE."};
  } else {
    throwNeedsModel("the built-in models take one array of floats");
  }
}

// The number of tokens that the model takes; 0 if its inputs are no token ids.
std::uint32_t lengthOf(const OwnModel& model) {
  const wire::Value& input = model.inputs.at(0);
  return input.shape_size() == 2 ? static_cast<std::uint32_t>(input.shape(1)) : 0;
}

void chooseTraining(const OpenedData& opened, FirstConfig& config) {
  constexpr std::uint32_t kMaxHoldout = 10'000;
  const Dataset& train = *opened.train;
  std::uint32_t holdout = 0;
  if (isSet(config, "data.holdout")) {
    holdout = opened.settings.holdout;
  } else if (!config.data.hasTest && !isSet(config, "data.test") && !isSet(config, "data.folds")) {
    holdout = config.holdout = std::clamp(train.size() / 5, 1u, kMaxHoldout);
  }
  config.batch = chooseBatch(train.size() - std::min(holdout, train.size() - 1));
  const bool isText = config.data.format == "text";
  const bool isPlainText = isText && config.data.value("label").empty();
  if (isPlainText) config.loss = "next_token";
  if (opened.settings.keys.targetType == "number") {
    config.loss = "mse";
    config.lossComment = describeTarget(train);
  }
  if (train.classes() > 0 && !isPlainText) config.bestMetric = "top1";
  if (isText) config.learningRate = 2e-5;
}

std::string commandOf(const NewOptions& options) {
  std::string command = "cleave-client new --data " + options.data;
  if (!options.model.empty()) command += " --model " + options.model;
  if (!options.label.empty()) command += " --label " + options.label;
  for (const std::string& each : options.overrides) command += " --set " + each;
  return command;
}

struct NewConfig {
  FirstConfig config;
  std::string columns;  // see describeColumns()
};

NewConfig makeConfig(const NewOptions& options, const std::string& name) {
  FirstConfig config;
  config.name = name;
  config.madeFor = commandOf(options);
  config.overrides = options.overrides;
  config.data = findData(options.data, options.label);
  if (isSet(config, "data.numeric") || isSet(config, "data.categorical") ||
      isSet(config, "data.ignore")) {
    config.data.ignored.clear();
  } else if (!config.data.hasInputs) {
    throwNoInputs(config.data, config.data.value("train.file"));
  }
  std::optional<OwnModel> model;
  if (!options.model.empty()) model = readModel(options.model);
  if (!model && (config.data.format == "text" || config.data.format == "tensors")) {
    throwNeedsModel("the built-in models do not read " +
                    std::string(config.data.format == "text" ? "texts" : "named arrays"));
  }
  constexpr int kMaxClasses = 1 << 20;
  const bool isIdx = config.data.format == "idx";
  if (model && config.data.format == "text") config.length = lengthOf(*model);
  FirstConfig draft = config;
  draft.model = {{"name", "mlp"}};
  draft.batch = {1, 1};
  if (!draft.data.hasTest) draft.holdout = 1;  // otherwise the keys of a test set are required
  if (isIdx) draft.classes = kMaxClasses;
  if (config.data.format == "text" && config.data.value("label").empty()) draft.loss = "next_token";
  const OpenedData opened = openTraining(draft);
  if (isIdx) config.classes = classesOf(*opened.train);
  if (!opened.sizes.empty()) {
    config.images = chooseImages(opened.sizes, imagesOf(model));
    if (isIdx) config.images->channels = opened.train->arrays().front().shape[0];
    config.hasColours = config.images->channels == 3;
  }
  if (model) {
    chooseOwnModel(*model, config);
  } else if (!isSet(config, "model.name") && !isSet(config, "model=")) {
    chooseBuiltIn(opened, config);
  }
  chooseTraining(opened, config);
  config.dataComment = describeData(config.data, *opened.train, config.classes);
  const DataFormatKeys& keys = opened.settings.keys;
  return {config, describeColumns(config.data, *opened.train, keys.labelColumn,
                                  keys.targetType == "number")};
}

// Throws if `train --dry-run` would refuse the configuration.
void checkConfig(const std::string& yaml) {
  processLog()->set_level(spdlog::level::err);  // openTraining() has printed the warnings
  RunOptions run;
  run.common.config = "the new configuration";
  run.common.configText = yaml;
  resolveRun(run, Purpose::measurement);
}

void printNext(const std::string& file, const NewConfig& made) {
  const FirstConfig& config = made.config;
  std::cout << fmt::format("{}: {}\n", file, config.dataComment) << made.columns;
  if (config.images) std::cout << "Images: " << config.images->reason << ".\n";
  if (!config.lossComment.empty()) std::cout << config.lossComment << "\n";
  if (!config.model.empty()) std::cout << "Model: " << inlineMap(config.model) << "\n";
  for (const std::string& each : config.modelComments) std::cout << "  " << each << "\n";
  const bool isImage = config.images.has_value();
  std::cout << fmt::format(
      "\nnext:\n"
      "  cleave-client data show --config {0}{1}\n"
      "  cleave-client doctor --config {0}\n"
      "  cleave-client train --config {0} --dry-run\n"
      "  cleave-client train --config {0}\n",
      file, isImage ? " --sheet sheet.png" : "");
  std::cout << std::flush;
}

// Errors about a key say how to set it here.
NewConfig makeOrExplain(const NewOptions& options, const std::string& name) {
  try {
    NewConfig made = makeConfig(options, name);
    checkConfig(yamlOf(made.config));
    return made;
  } catch (const UsageError& error) {
    const bool isAboutKey = error.hint().find("set data.") != std::string::npos ||
                            error.hint().find("in data.") != std::string::npos;
    if (!isAboutKey) throw;
    throw UsageError(error, error.what(),
                     error.hint() + "; here, keys are set with --set KEY=VALUE");
  }
}

int newCommand(const NewOptions& given) {
  startLog("cleave-client", "warn");
  NewOptions options = given;
  constexpr std::string_view kLabel = "data.label=";
  for (const std::string& each : options.overrides) {
    if (each.starts_with(kLabel)) options.label = each.substr(kLabel.size());
  }
  std::erase_if(options.overrides,
                [&](const std::string& each) { return each.starts_with(kLabel); });
  std::string name = fs::path(options.data).lexically_normal().filename();
  if (name.empty()) name = fs::path(options.data).lexically_normal().parent_path().filename();
  name = name.substr(0, name.find('.', 1));
  if (name.empty() || name.starts_with('.')) name = "first";
  const std::string output = options.output.empty() ? name + ".yaml" : options.output;
  checkOutputFile(output, options.overwrite, name + ".yaml");
  const NewConfig made = makeOrExplain(options, name);
  writeFileDurably(output, yamlOf(made.config));
  printNext(output, made);
  return 0;
}

}  // namespace

void addNewCommand(CLI::App& app, std::function<int()>& command) {
  static NewOptions options;
  CLI::App* create = app.add_subcommand(
      "new", "Writes a first configuration for your data and model, and says why");
  create
      ->add_option("--data", options.data,
                   "A folder of images per class (also in train/ and test/), a .csv or .tsv table, "
                   "a .tar archive, .npy, safetensors, IDX or CIFAR files")
      ->type_name("PATH")
      ->required();
  create
      ->add_option(
          "--model", options.model,
          "A model written by cleave_split.export; default: a built-in model for this data")
      ->type_name("FILE");
  create
      ->add_option("--label", options.label,
                   "The column of a table that is the target; default: a column named label, "
                   "target, class, y or outcome, else the last one")
      ->type_name("COLUMN");
  create
      ->add_option("--set", options.overrides,
                   "Sets a value of the configuration to write; repeatable; the command 'keys' "
                   "lists all keys")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  create
      ->add_option("--output", options.output, "The file to write; default: NAME.yaml, after PATH")
      ->type_name("FILE");
  create->add_flag("--overwrite", options.overwrite, "Replaces the file if it exists");
  create->footer(
      "Example:\n  cleave-client new --data photos/ --model resnet18.pt2\n\n"
      "The file has comments on each choice, and 'train --dry-run' accepts it.\n\n"
      "Exit codes: 0 done, 2 usage error, such as data in no known format.");
  create->callback([&] { command = [&] { return newCommand(options); }; });
}

}  // namespace cleave
