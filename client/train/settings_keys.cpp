// The table of the client's configuration keys.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/data/csv_file.h"
#include "client/train/settings.h"
#include "common/core/endpoint.h"
#include "common/core/metric_titles.h"
#include "common/core/names.h"
#include "common/core/units.h"
#include "common/engine/schedule.h"
#include "common/run/config_errors.h"
#include "common/run/device.h"
#include "common/run/plan.h"
#include "common/run/run_folder.h"
#include "compression/registry.h"

namespace cleave {
namespace {

using Settings = ClientSettings;
using Table = ConfigTable<Settings>;

constexpr const char* kDefaultCodec = "auto";
constexpr std::int64_t kMany = std::int64_t{1} << 31;

// Returns "`a`, `b`" for rows with the names a and b.
template <typename Rows>
std::string namesOf(const Rows& rows) {
  std::string names;
  for (const auto& row : rows) names += fmt::format("{}`{}`", names.empty() ? "" : ", ", row.name);
  return names;
}

template <typename Rows>
std::vector<std::string> listOf(const Rows& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows) names.emplace_back(row.name);
  return names;
}

// ---- Run and model ----

void readModel(Config& config, Settings& settings) {
  settings.model = config.text("model.name");
  checkAt(config, "model.name", [&] { findModel(settings.model); });
  if (settings.model == "graph") return;  // has no parameters, so other keys are unknown
  for (const std::string& key : config.keys("model")) {
    // If it is one of these misspelt, it is refused as an unknown key.
    if (!nearestName(key, {"name", "cuts", "file", "lora"}).empty()) continue;
    settings.modelParameters[key] = config.text("model." + key);
  }
}

void readModelFile(Config& config, Settings& settings) {
  const bool isGraph = settings.model == "graph";
  if (!isGraph && !config.has("model.file")) return;
  settings.modelFile = config.text("model.file");
  if (isGraph) return;
  throw UsageError("bad-model-parameter",
                   config.where("model.file") + ": the model " + settings.model + " takes no file",
                   "set model.name to graph, or remove model.file");
}

void readCuts(Config& config, Settings& settings) {
  if (!config.has("model.cuts")) return;
  const auto check = [&](std::size_t count, const std::string& hint) {
    if (count >= 2 && count <= kMaxServers + 1) return;
    throw UsageError("bad-cuts",
                     config.where("model.cuts") + ": model.cuts has " + countText(count, "value"),
                     hint);
  };
  if (settings.model == "graph") {
    settings.cutNames = config.texts("model.cuts", {});
    return check(settings.cutNames.size(),
                 "name two modules, or more for several servers; to list the possible ones: "
                 "cleave-client models show FILE");
  }
  const auto cuts = config.integers("model.cuts", 0, 1 << 16);
  check(cuts.size(),
        "give two block positions, such as [3, 9], or more for several servers, such as [3, 6, 9]");
  settings.cuts.assign(cuts.begin(), cuts.end());
}

// Splits "width=8..512 (32), dropout=0..0.9 (0.1)" into triples (name, values, default).
std::vector<std::array<std::string, 3>> parametersOf(std::string_view text) {
  std::vector<std::array<std::string, 3>> all;
  while (!text.empty()) {
    const std::size_t equals = text.find('=');
    const std::size_t open = text.find(" (", equals);
    const std::size_t close = text.find(')', open);
    if (close == std::string_view::npos) break;
    all.push_back({std::string(text.substr(0, equals)),
                   std::string(text.substr(equals + 1, open - equals - 1)),
                   std::string(text.substr(open + 2, close - open - 2))});
    const std::size_t next = text.find(", ", close);
    text = next == std::string_view::npos ? std::string_view() : text.substr(next + 2);
  }
  return all;
}

// Returns "0 … 0.9" for "0..0.9", and "`a`, `b`" for "a|b".
std::string valuesText(const std::string& values) {
  if (const std::size_t dots = values.find(".."); dots != std::string::npos) {
    return values.substr(0, dots) + " … " + values.substr(dots + 2);
  }
  std::string text = "`";
  for (const char c : values) text += c == '|' ? std::string("`, `") : std::string(1, c);
  return text + "`";
}

std::string parameterMeaning(std::string_view name) {
  constexpr std::pair<std::string_view, const char*> kMeanings[] = {
      {"width",
       "`mlp`: units per layer; `small_cnn`: channels of the first convolution; "
       "`mobilenet_v2`: multiplier of all channels"},
      {"depth", "hidden layers"},
      {"dropout", "probability of dropout; `mobilenet_v2` has it only with `tail: global`"},
      {"tail", "`global`: global average pooling; `prototype`: ReLU and a 4 x 4 average pooling"},
  };
  for (const auto& [known, meaning] : kMeanings) {
    if (known == name) return meaning;
  }
  return "a parameter of the model; see `cleave-client models`";
}

// Adds one row per parameter name. The row lists the values for each model that has the parameter.
// The rows only document the keys: the row `model.name` reads their values.
void addModelParameters(Table& table) {
  std::vector<std::array<std::string, 3>> rows;
  for (const ModelRow& model : modelTable()) {
    for (const auto& [name, values, preset] : parametersOf(model.parameters)) {
      auto row = std::find_if(rows.begin(), rows.end(),
                              [&, wanted = name](const auto& each) { return each[0] == wanted; });
      if (row == rows.end()) row = rows.insert(rows.end(), {name, "", ""});
      const char* separator = (*row)[1].empty() ? "" : "; ";
      (*row)[1] += fmt::format("{}`{}`: {}", separator, model.name, valuesText(values));
      (*row)[2] += fmt::format("{}`{}`: {}", separator, model.name, preset);
    }
  }
  for (const auto& [name, values, preset] : rows) {
    table.add("model." + name, values, "", preset, parameterMeaning(name), nullptr);
  }
}

double readParameter(Config& config, const std::string& path, const InsertParameterRow& row) {
  if (!row.isWhole) return config.number(path, row.min, row.max, row.defaultValue);
  std::optional<std::int64_t> defaultValue;
  if (row.defaultValue) defaultValue = static_cast<std::int64_t>(*row.defaultValue);
  return static_cast<double>(config.integer(path, static_cast<std::int64_t>(row.min),
                                            static_cast<std::int64_t>(row.max), defaultValue));
}

void readInserts(Config& config, Settings& settings) {
  const std::size_t count = config.items("insert");
  for (std::size_t i = 0; i < count; ++i) {
    const std::string item = fmt::format("insert[{}].", i);
    InsertSpec& insert = settings.inserts.emplace_back();
    insert.cut = static_cast<std::uint32_t>(config.integer(item + "cut", 0, kMaxServers));
    insert.kind = config.text(item + "kind", std::nullopt, listOf(insertTable()));
    for (const InsertParameterRow& row : findInsert(insert.kind).parameters) {
      const std::string name(row.name);
      insert.parameters[name] = readParameter(config, item + name, row);
    }
  }
}

std::string typeOf(const InsertParameterRow& row) {
  return row.isWhole
             ? integerType(static_cast<std::int64_t>(row.min), static_cast<std::int64_t>(row.max))
             : numberType(row.min, row.max);
}

// The rows of parameters only document the keys: the row `insert.cut` reads their values.
void addInsertKeys(Table& table) {
  table.add("insert.cut", integerType(0, kMaxServers), "", "none",
            "`insert: {cut: 0, kind: conv, …}`, or a list of such maps: [learned "
            "inserts](models.md#learned-inserts) that make the tensors at a cut smaller; the first "
            "cut has the number 0",
            readInserts);
  std::string kinds;
  for (const InsertRow& row : insertTable()) {
    kinds += fmt::format("{}`{}`: {}", kinds.empty() ? "" : "; ", row.name, row.description);
  }
  table.add("insert.kind", namesOf(insertTable()), "", "required", kinds, nullptr);
  struct Parameter {
    InsertParameterRow row;
    std::string users;  // the kinds that have it
  };
  std::vector<Parameter> parameters;
  for (const InsertRow& insert : insertTable()) {
    for (const InsertParameterRow& row : insert.parameters) {
      auto known = std::find_if(parameters.begin(), parameters.end(),
                                [&](const Parameter& each) { return each.row.name == row.name; });
      if (known == parameters.end()) known = parameters.insert(known, {row, ""});
      known->users += fmt::format("{}`{}`", known->users.empty() ? "" : ", ", insert.name);
    }
  }
  for (const auto& [row, users] : parameters) {
    table.add(fmt::format("insert.{}", row.name), typeOf(row), "",
              row.defaultValue ? fmt::format("`{}`", *row.defaultValue) : "required",
              fmt::format("{}: {}", users, row.meaning), nullptr);
  }
}

void readWeights(Config& config, Settings& settings) {
  config.expand("weights", "file");
  if (!config.has("weights")) return;
  if (config.keys("weights").empty()) {
    throw UsageError(
        "bad-config", config.where("weights") + ": weights.file is missing",
        "set weights.file=FILE, or omit weights to initialise the model from the seed");
  }
  WeightsSettings& weights = settings.weights;
  weights.file = config.text("weights.file");
  weights.except = config.texts("weights.except", std::vector<std::string>{});
  weights.partial = config.boolean("weights.partial", weights.partial);
  for (const std::string& rule : config.texts("weights.rename", std::vector<std::string>{})) {
    const std::size_t end = rule.find('=');
    if (end == std::string::npos || end == 0) {
      throw UsageError("bad-config",
                       config.where("weights.rename") + ": '" + rule + "' is not OLD=NEW",
                       "give the old and the new prefix of the names, such as module.= or "
                       "backbone.=features.");
    }
    weights.rename.emplace_back(rule.substr(0, end), rule.substr(end + 1));
  }
}

// ---- Adapters, frozen parameters ----

void readLora(Config& config, Settings& settings) {
  if (config.keys("model.lora").empty()) return;
  LoraSpec& lora = settings.lora;
  lora.rank = config.integer("model.lora.rank", 0, 4096, 0);
  if (lora.rank > 0 && settings.model != "graph") {
    throw UsageError(
        "bad-lora",
        config.where("model.lora.rank") + ": the model " + settings.model + " cannot have adapters",
        "set model.name to graph, or remove model.lora");
  }
  lora.alpha = config.number("model.lora.alpha", 0, 1e6, 0);
  lora.dropout = config.number("model.lora.dropout", 0, 0.99, 0);
  lora.targets = lora.rank > 0 ? config.texts("model.lora.targets")
                               : config.texts("model.lora.targets", std::vector<std::string>{});
  lora.parts = config.texts("model.lora.parts", lora.parts);
  for (const std::string& part : lora.parts) {
    if (part == "head" || part == "body" || part == "tail") continue;
    throw UsageError("bad-lora", config.where("model.lora.parts") + ": there is no part " + part,
                     "choose from head, body, tail");
  }
  if (lora.rank > 0) settings.freeze = {"*"};  // the patterns of train.freeze follow
}

void addLora(Table& table) {
  table.add("model.lora.rank", integerType(0, 4096), "", "`0`",
            "`graph`: rank of the adapters (LoRA) that are trained instead of the linear layers; "
            "0: none. See [fine-tuning](models.md#fine-tuning)",
            readLora);
  table.add("model.lora.alpha", numberType(0, 1e6), "", "`0`",
            "the adapters' output is scaled by alpha / rank; 0: alpha is twice the rank", nullptr);
  table.add("model.lora.dropout", numberType(0, 0.99), "", "`0`",
            "dropout probability for the adapters' input", nullptr);
  table.add("model.lora.targets", "list of strings", "", "required with a rank",
            "modules that get adapters: names, suffixes of names, or patterns with `*`, such as "
            "`[query, value]`",
            nullptr);
  table.add("model.lora.parts", "list of strings", "", "`[head, body, tail]`",
            "parts whose modules get adapters", nullptr);
}

// Parses a group such as "classifier.*:learning_rate=10,weight_decay=0".
void readGroup(const std::string& text, Settings& settings) {
  const std::size_t colon = text.find(':');
  const auto refuse = [&](const std::string& why) {
    throw UsageError("bad-optimizer-parameter", "the parameter group '" + text + "' " + why,
                     "write PATTERN:learning_rate=FACTOR,weight_decay=NUMBER");
  };
  if (colon == std::string::npos || colon == 0) refuse("has no pattern, or no values");
  ParameterGroup group{text.substr(0, colon), std::nullopt};
  double factor = 1;
  std::size_t begin = colon + 1;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    const std::size_t equals = item.find('=');
    const std::string key = item.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : item.substr(equals + 1);
    double number = 0;
    const auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || stop != value.data() + value.size() ||
        !(number >= 0 && number <= 1e6)) {
      refuse("has a value that is not a number from 0 to 1000000: '" + item + "'");
    }
    if (key == "learning_rate") {
      factor = number;
    } else if (key == "weight_decay") {
      group.weightDecay = number;
    } else {
      refuse("has the unknown value '" + key + "'");
    }
    begin = end + 1;
  }
  settings.optimizer.groups.push_back(group);
  settings.groupRates.push_back(factor);
}

void addFineTuning(Table& table) {
  table.add(
      "train.freeze", "list of strings", "", "`[]`",
      "patterns of parameters that are not trained, such as `[encoder.*]`; a later pattern "
      "that begins with `!` makes exceptions: `['*', '!classifier.*']`. With `model.lora`, "
      "everything except the adapters is frozen, so only exceptions are needed. Learned inserts "
      "are frozen only by patterns that begin with `insert.`",
      [](Config& config, Settings& s) {
        for (const std::string& pattern :
             config.texts("train.freeze", std::vector<std::string>{})) {
          s.freeze.push_back(pattern);
        }
      });
  table.add(
      "train.groups", "list of strings", "", "`[]`",
      "separate learning rates or weight decays for parameters, by pattern; the rate is a factor: "
      "`['classifier.*:learning_rate=10', '*.bias:weight_decay=0']`. The first matching pattern "
      "applies",
      [](Config& config, Settings& s) {
        checkAt(config, "train.groups", [&] {
          for (const std::string& text : config.texts("train.groups", std::vector<std::string>{})) {
            readGroup(text, s);
          }
          checkOptimizer(s.optimizer);
        });
      });
  const auto precision = [&](const char* name, Precision Settings::*field, const char* meaning) {
    table.add(name, "`fp32`, `bf16`, `fp16`", "", "`fp32`", meaning,
              [=](Config& config, Settings& s) {
                s.*field = precisionFromName(config.text(name, "fp32", {"fp32", "bf16", "fp16"}));
              });
  };
  precision("precision.client", &Settings::clientPrecision,
            "arithmetic of head and tail; see [precision](models.md#precision)");
  precision("precision.server", &Settings::serverPrecision, "arithmetic of the body");
  table.boolean("precision.scale_loss", &Settings::mayScaleLoss,
                "whether the loss is scaled in fp16, so that small gradients do not become 0");
  table.number("train.ema", "", 0, 0.9999999, &Settings::averageDecay,
               "decay of a moving average of the weights, such as `0.999`; evaluations use the "
               "average, and `model.safetensors` contains it; `0`: no average");
  table.boolean("train.recompute", &Settings::recompute,
                "saves memory: head and body keep only their inputs for the backward pass, and "
                "compute the forward pass again");
}

// ---- Loss and metrics ----

void readLoss(Config& config, Settings& settings) {
  LossSpec& loss = settings.scores.loss;
  config.expand("train.loss", "name");
  loss.name = config.text("train.loss.name", loss.name);
  checkAt(config, "train.loss.name", [&] { findLoss(loss.name); });
  if (findLoss(loss.name).target != TargetKind::classes) return;
  constexpr double kMaxWeight = 1e6;
  loss.labelSmoothing = config.number("train.loss.label_smoothing", 0, 1, loss.labelSmoothing);
  loss.classWeights = config.numbers("train.loss.class_weights", 0, kMaxWeight, loss.classWeights);
  loss.ignoreIndex = config.integer("train.loss.ignore_index", -kMany, kMany, loss.ignoreIndex);
}

// Splits "top1, top5" into a list.
std::vector<std::string> splitNames(std::string_view text) {
  std::vector<std::string> names;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(", "), text.size());
    names.emplace_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 2, text.size()));
  }
  return names;
}

void readMetrics(Config& config, Settings& settings) {
  ScoreSpec& scores = settings.scores;
  scores.metrics = config.texts("train.metrics", splitNames(findLoss(scores.loss.name).metrics));
  checkAt(config, "train.metrics", [&] { checkScores(scores); });
}

void readKeepBest(Config& config, Settings& settings) {
  config.expand("keep.best", "metric");
  if (config.keys("keep.best").empty()) return;
  settings.bestMetric = config.text("keep.best.metric");
  const std::vector<std::string> measured = settings.scores.names();
  if (std::count(measured.begin(), measured.end(), settings.bestMetric) > 0) return;
  throw UsageError("bad-config",
                   config.where("keep.best.metric") + ": the run does not measure '" +
                       settings.bestMetric + "', only " +
                       fmt::format("{}", fmt::join(measured, ", ")),
                   "name one of these, or add the metric to train.metrics");
}

void readKeepLast(Config& config, Settings& settings) {
  settings.keepsLast = config.boolean("keep.last", settings.keepsLast);
  if (settings.keepsLast || config.has("keep.best")) return;
  throw UsageError("bad-config",
                   config.where("keep.last") +
                       ": without the last and the best model, the run "
                       "would keep none",
                   "set keep.best, or remove keep.last");
}

void readStop(Config& config, Settings& settings) {
  config.expand("train.stop", "metric");
  if (config.keys("train.stop").empty()) return;
  EarlyStop& stop = settings.stop;
  stop.metric = config.text("train.stop.metric", std::nullopt, settings.scores.names());
  stop.isGreatest =
      config.text("train.stop.mode", metricTitle(stop.metric).isBetterIfGreater ? "max" : "min",
                  {"max", "min"}) == "max";
  stop.patience = static_cast<std::uint64_t>(
      config.integer("train.stop.patience", 1, kMany, static_cast<std::int64_t>(stop.patience)));
  stop.minChange = config.number("train.stop.min_change", 0, 1e9, stop.minChange);
}

void addStop(Table& table) {
  table.add("train.stop.metric", "a metric, or `loss`", "", "none",
            "ends the run early, after an epoch, if this metric has not improved in "
            "`train.stop.patience` evaluations; short form: `stop: loss`",
            readStop);
  table.add("train.stop.mode", "`max`, `min`", "", "by the metric", "which value is better",
            nullptr);
  table
      .add("train.stop.patience", integerType(1, kMany), "evaluations", "`3`",
           "number of evaluations without a better value after which the run ends", nullptr)
      .mayChange();
  table
      .add("train.stop.min_change", numberType(0, 1e9), "", "`0`",
           "minimum difference for a value to count as better", nullptr)
      .mayChange();
}

void addScores(Table& table) {
  std::string defaults;
  for (const LossRow& row : lossTable()) {
    if (row.metrics.empty()) continue;
    defaults += fmt::format("{}`{}`: {}", defaults.empty() ? "" : "; ", row.name, row.metrics);
  }
  table.add("train.loss.name", namesOf(lossTable()), "", "`cross_entropy`",
            "short form: `train.loss: mse`; see [losses](models.md#losses-and-metrics)", readLoss);
  table.add("train.loss.label_smoothing", numberType(0, 1), "", "`0`",
            "`cross_entropy`, `next_token`: share of the probability that is "
            "spread over all classes",
            nullptr);
  table.add("train.loss.class_weights", "list of numbers", "", "`[]`",
            "`cross_entropy`, `next_token`: a weight per class", nullptr);
  table.add("train.loss.ignore_index", "integer", "", "`-100`",
            "`cross_entropy`, `next_token`: targets with this value are ignored", nullptr);
  table.add("train.metrics", "list of strings", "", defaults,
            "columns of the run's files after the loss: " + namesOf(batchMetricTable()),
            readMetrics);
  table
      .add("keep.last", "boolean", "", "`true`",
           "saves the model after each epoch and at the end, as `model.safetensors`; `false`: only "
           "the best model is kept, which requires `keep.best`",
           readKeepLast)
      .mayChange();
  table.add("keep.best.metric", "a metric, or `loss`", "", "none",
            "also keeps the model with the best value in an evaluation, as "
            "`model.best.safetensors`; short form: `keep: {best: matthews}`",
            readKeepBest);
  table.add("keep.best.mode", "`max`, `min`", "", "by the metric", "which value is the best",
            [](Config& config, Settings& s) {
              if (s.bestMetric.empty()) return;
              const bool isGreatest = metricTitle(s.bestMetric).isBetterIfGreater;
              s.bestIsGreatest = config.text("keep.best.mode", isGreatest ? "max" : "min",
                                             {"max", "min"}) == "max";
            });
  addStop(table);
}

void addRunAndModel(Table& table) {
  table.section("Run and model");
  table.text("run.name", "text", &Settings::name,
             "the run ID is `NAME-YYYYMMDD-hhmmss-xxxx`, in UTC; NAME is the first 40 characters "
             "of this name in lower case, with `-` for everything except letters and digits");
  table.integer("run.seed", "", 0, kMany, &Settings::seed,
                "seed for initial weights, order of samples, augmentation and dropout");
  table.add("model.name", namesOf(modelTable()), "", "required",
            "the model; `cleave-client models` lists all models", readModel);
  addModelParameters(table);
  table.add("model.file", "path", "", "required for `graph`",
            "the model that you exported from PyTorch: [models.md](models.md)", readModelFile);
  table.add("model.cuts", "list of integers or texts", "", "the model's own; required for `graph`",
            "`[4, 13]`: the body is blocks 4 to 12; `--dry-run` lists the blocks. `graph`: the "
            "modules after which it is cut, such as `[features.3, features.18]`; `cleave-client "
            "models show FILE` lists them. With more than two values, each further one adds a "
            "server: see [several servers](#several-servers)",
            readCuts);
  addLora(table);
  addInsertKeys(table);
  table.add("weights.file", "path", "", "none",
            "safetensors file with initial weights; short form: `weights: FILE`", readWeights);
  table.add(
      "weights.except", "list of strings", "", "`[]`",
      "blocks that are initialised from the seed instead of that file, such as `[classifier.1]`",
      nullptr);
  table.add("weights.rename", "list of strings", "", "`[]`",
            "`OLD=NEW`: replaces the prefix OLD of names in the file with NEW; `[module.=]` "
            "removes `module.`",
            nullptr);
  table.add("weights.partial", "boolean", "", "`false`",
            "tensors that are missing in the file, or have another shape in it, are initialised "
            "from the seed; tensors that the model does not have are ignored; the log lists both",
            nullptr);
}

// ---- Data ----

// Call this after reading the keys that decide whether the format needs a test set.
void readFormatKeys(Config& config, Settings& settings) {
  DataSettings& data = settings.data;
  data.keys.seed = settings.seed;
  data.keys.needsTest = data.hasTestSet();
  findDataFormat(data.format).keys().readInto(config, data.keys);
}

// Call this after reading the keys of the format. The order of a text matters to language models.
void readHoldoutFrom(Config& config, Settings& settings) {
  DataSettings& data = settings.data;
  const bool isPlainText = data.format == "text" && !isTablePath(data.keys.trainFile);
  data.holdoutFrom =
      config.text("data.holdout_from", isPlainText ? "end" : "random", {"random", "end"});
}

void checkFolds(Config& config, Settings& settings) {
  const DataSettings& data = settings.data;
  if (data.subset.folds == 1) {
    throw UsageError("bad-config", config.where("data.folds") + ": data.folds is 1",
                     "set data.folds to at least 2, or to 0 to evaluate on the test set");
  }
  if (data.subset.folds > 0 && data.holdout > 0) {
    throw UsageError("bad-config",
                     config.where("data.folds") + ": data.folds and data.holdout are both set",
                     "remove one of them");
  }
  if (data.subset.folds > 0 && data.subset.fold > data.subset.folds) {
    throw UsageError("bad-config",
                     fmt::format("{}: data.fold is {}, but there are {} folds",
                                 config.where("data.fold"), data.subset.fold, data.subset.folds),
                     fmt::format("set data.fold in 1…{}", data.subset.folds));
  }
}

void addSubset(Table& table) {
  table.integer(
      "data.holdout", "samples", 0, kMany, [](Settings & s) -> auto& { return s.data.holdout; },
      "N > 0: evaluates on N training samples instead of the test set");
  table.integer(
      "data.folds", "", 0, 1000, [](Settings & s) -> auto& { return s.data.subset.folds; },
      "K > 1: divides the samples of each class into K parts, evaluates on one part and trains on "
      "the others; the test set is not opened");
  table
      .integer(
          "data.fold", "", 1, 1000, [](Settings & s) -> auto& { return s.data.subset.fold; },
          "the part to evaluate on if `data.folds` is set, 1 … K")
      .then(checkFolds);
  table.integer(
      "data.train.per_class", "samples", 0, kMany,
      [](Settings & s) -> auto& { return s.data.subset.perClass; },
      "N > 0: trains on N random samples of each class");
  table.add("data.sampling", "`uniform`, `balanced`", "", "`uniform`",
            "`uniform`: an epoch has every training sample once; `balanced`: an epoch has the same "
            "number of samples, drawn with replacement, and all classes are equally likely",
            [](Config& config, Settings& s) {
              const std::string sampling =
                  config.text("data.sampling", "uniform", {"uniform", "balanced"});
              s.data.subset.isBalanced = sampling == "balanced";
            });
}

void addData(Table& table) {
  table.section("Data");
  table.add("data.format", namesOf(dataFormatTable()), "", "required", "file format",
            [](Config& config, Settings& s) {
              s.data.format = config.text("data.format", std::nullopt, listOf(dataFormatTable()));
            });
  for (const KeyText& key : dataFormatKeys()) {
    table.add(key.name, key.type, key.unit, key.defaultValue, key.meaning, nullptr);
  }
  table
      .add("data.class_names", "list of strings", "", "the names in the data",
           "names of the classes, by number, for `eval`, `predict` and the report",
           [](Config& config, Settings& settings) {
             settings.data.classNames =
                 config.texts("data.class_names", std::vector<std::string>());
           })
      .mayChange();
  // A run that has read no more damaged samples than allowed has not depended on this limit yet.
  table
      .integer(
          "data.skip", "samples", 0, kMany, [](Settings & s) -> auto& { return s.data.skip; },
          "maximum number of damaged samples per dataset; each is replaced by the next readable "
          "sample")
      .mayChange();
  table.add(
      "data.seed", integerType(0, kMany), "", "`run.seed`",
      "seed for `data.folds`, `data.train.per_class` and `synthetic` data; not for `data.holdout`",
      [](Config& config, Settings& s) {
        const auto seed = static_cast<std::int64_t>(s.seed);
        s.data.keys.dataSeed =
            static_cast<std::uint64_t>(config.integer("data.seed", 0, kMany, seed));
      });
  addSubset(table);
  table
      .integer(
          "data.threads", "", 0, 256, [](Settings & s) -> auto& { return s.data.threads; },
          "number of threads that prepare samples; it does not affect the results; 0: one thread, "
          "or all usable cores (at most 16) if a sample takes longer than 0.3 ms")
      .mayChange()
      .then(readFormatKeys);
  table.add("data.holdout_from", "`random`, `end`", "", "`random`; `end` for plain text",
            "which samples `data.holdout` takes: `random`: a random selection, the same for every "
            "`run.seed`; `end`: the last ones, for example of a time series",
            readHoldoutFrom);
}

// ---- Training and evaluation ----

void checkMicroBatches(Config& config, Settings& settings) {
  if (settings.microBatches <= settings.batch) return;
  throw UsageError("bad-config",
                   config.where("train.micro_batches") + ": " + "a batch of " +
                       std::to_string(settings.batch) + " samples cannot be split into " +
                       std::to_string(settings.microBatches) + " micro-batches",
                   "set train.micro_batches in 1…" + std::to_string(settings.batch));
}

// Reads a switch: 0, 1, true or false.
double readSwitch(Config& config, const std::string& path) {
  const std::string text = config.text(path, std::nullopt, {"true", "false", "1", "0"});
  return text == "true" || text == "1" ? 1 : 0;
}

void readOptimizer(Config& config, Settings& settings) {
  OptimizerSpec& optimizer = settings.optimizer;
  config.expand("train.optimizer", "name");
  optimizer.name = config.text("train.optimizer.name", optimizer.name);
  for (const std::string& key : config.keys("train.optimizer")) {
    if (key == "name") continue;
    const std::string path = "train.optimizer." + key;
    optimizer.parameters[key] =
        key == "nesterov" ? readSwitch(config, path) : config.number(path, -1e6, 1e6);
    // The parameters are checked one by one, so that an error names the right key.
    OptimizerSpec alone{optimizer.name, {}};
    if (key != "nesterov") alone.parameters[key] = optimizer.parameters[key];
    checkAt(config, path, [&] { checkOptimizer(alone); });
  }
  checkAt(config, "train.optimizer.name", [&] { checkOptimizer(optimizer); });
}

// Adds one row per parameter name, with the optimizers that have the parameter. The rows only
// document the keys: the row `train.optimizer.name` reads their values.
void addOptimizerParameters(Table& table) {
  struct Parameter {
    std::string_view name, range;
    std::string defaults, optimizers;
    bool hasOneDefault = true;
    double firstDefault = 0;
  };
  std::vector<Parameter> rows;
  for (const OptimizerRow& optimizer : optimizerTable()) {
    for (const OptimizerParameterRow& each : optimizer.parameters) {
      auto row = std::find_if(rows.begin(), rows.end(),
                              [&](const Parameter& known) { return known.name == each.name; });
      if (row == rows.end()) {
        row = rows.insert(rows.end(), {each.name, each.range, "", "", true, each.defaultValue});
      }
      row->hasOneDefault = row->hasOneDefault && row->firstDefault == each.defaultValue;
      row->defaults += fmt::format("{}`{}`: {}", row->defaults.empty() ? "" : "; ", optimizer.name,
                                   each.defaultValue);
      row->optimizers += fmt::format("{}`{}`", row->optimizers.empty() ? "" : ", ", optimizer.name);
    }
  }
  for (const Parameter& row : rows) {
    table.add(fmt::format("train.optimizer.{}", row.name), fmt::format("number, {}", row.range), "",
              row.hasOneDefault ? defaultText(row.firstDefault) : row.defaults, row.optimizers,
              nullptr);
  }
}

void addLearningRate(Table& table) {
  const auto field = [](auto member) {
    return [member](Settings & s) -> auto& { return s.learningRate.*member; };
  };
  const auto names = [](bool LearningRateRow::*has) {
    std::string text;
    for (const LearningRateRow& row : learningRateTable()) {
      if (has != nullptr && !(row.*has)) continue;
      text += fmt::format("{}`{}`", text.empty() ? "" : ", ", row.name);
    }
    return text;
  };
  const auto onlyFor = [](bool LearningRateRow::*has) {
    return [has](const Settings& s) { return findLearningRate(s.learningRate.schedule).*has; };
  };
  table
      .add("train.learning_rate.schedule", names(nullptr), "",
           fmt::format("`{}`", LearningRateOptions{}.schedule),
           "schedule of the rate after the warm-up",
           [](Config& config, Settings& s) {
             config.expand("train.learning_rate", "peak");
             std::string& schedule = s.learningRate.schedule;
             schedule = config.text("train.learning_rate.schedule", schedule);
             checkAt(config, "train.learning_rate.schedule",
                     [&] { learningRate(s.learningRate, 1); });
           })
      .mayChange();
  table
      .number("train.learning_rate.peak", "", 0, 1e6, field(&LearningRateOptions::peak),
              "rate after the warm-up; short form: `learning_rate: 0.01`")
      .mayChange();
  table
      .number("train.learning_rate.warmup_epochs", "epochs", 0, 1e6, &Settings::warmupEpochs,
              "linear warm-up")
      .mayChange();
  table
      .number("train.learning_rate.end", "", 0, 1e6, field(&LearningRateOptions::end),
              names(&LearningRateRow::decays) + ": rate of the last step")
      .mayChange()
      .onlyIf(onlyFor(&LearningRateRow::decays));
  table
      .number("train.learning_rate.power", "", 0.01, 100, field(&LearningRateOptions::power),
              names(&LearningRateRow::hasPower) + ": exponent")
      .mayChange()
      .onlyIf(onlyFor(&LearningRateRow::hasPower));
}

void addTraining(Table& table) {
  table.section("Training and evaluation");
  table.integer("train.batch", "samples", 1, 1 << 20, &Settings::batch, "batch size");
  table
      .integer("train.micro_batches", "", 1, 1 << 16, &Settings::microBatches,
               "micro-batches per batch, at most `train.batch`")
      .then(checkMicroBatches);
  table
      .text("train.schedule", namesOf(scheduleTable()), &Settings::schedule,
            "order of computation and transfers; see [schedules](#schedules)")
      .then([](Config& config, Settings& s) {
        checkAt(config, "train.schedule", [&] { findSchedule(s.schedule); });
      });
  table
      .integer("train.staleness", "steps", 0, kMaxStaleness, &Settings::staleness,
               "number of steps by which the weights of a step lag behind, so that steps overlap; "
               "see [asynchronous steps](#asynchronous-steps); 0: steps do not overlap")
      .then([](Config& config, Settings& s) {
        checkAt(config, "train.staleness",
                [&] { checkStaleness(findSchedule(s.schedule), s.staleness); });
      });
  table
      .integer("train.in_flight", "micro-batches", 0, 1 << 16, &Settings::inFlight,
               "maximum micro-batches in flight; memory grows with it; 0: the schedule's default")
      .then([](Config& config, Settings& s) {
        checkAt(config, "train.in_flight", [&] {
          resolveInFlight(findSchedule(s.schedule), s.inFlight, s.microBatches * (s.staleness + 1));
        });
      });
  table.integer("train.epochs", "", 1, 1 << 20, &Settings::epochs, "passes over the training data")
      .mayChange();
  table
      .integer("train.max_steps", "steps", 0, kMany, &Settings::maxSteps,
               "stops after this many steps; 0: no limit")
      .mayChange();
  table.add("train.optimizer.name", namesOf(optimizerTable()), "", "`sgd`",
            "optimizer of head, body and tail; short form: `optimizer: adam`", readOptimizer);
  addOptimizerParameters(table);
  addLearningRate(table);
  addFineTuning(table);
  addScores(table);
  table
      .number("train.clip_norm", "", 0, 1e12, &Settings::clipNorm,
              "maximum global gradient norm; 0: no limit")
      .mayChange();
  table.integer("eval.batch", "samples", 1, 1 << 20, &Settings::evalBatch,
                "batch size of the evaluation");
  table
      .integer("eval.every", "epochs", 0, 1 << 20, &Settings::evalEvery,
               "evaluates every N epochs, and after the last one; 0: never")
      .mayChange()
      .then([](Config& config, Settings& s) {
        if (s.evalEvery == 0 && !s.stop.metric.empty()) {
          throw UsageError("bad-config",
                           config.where("train.stop.metric") +
                               ": train.stop needs evaluations, but eval.every is 0",
                           "set eval.every to 1, or remove train.stop");
        }
        if (s.evalEvery > 0 || s.bestMetric.empty()) return;
        throw UsageError(
            "bad-config",
            config.where("eval.every") + ": without evaluations there is no best model to keep",
            "set eval.every to 1, or remove keep.best: --set 'keep={}'");
      });
}

// ---- Codec, device, link ----

// Like makeCodec(), but its hint also names `auto`, which is not a codec.
void checkCodec(const std::string& spec) {
  try {
    makeCodec(spec);
  } catch (const UsageError& error) {
    if (error.code() != "unknown-codec") throw;
    const std::string name = spec.substr(0, spec.find_first_of(":("));
    const bool isAuto = !nearestName(name, {kDefaultCodec}).empty();
    throw UsageError(
        error.code(), error.what(),
        (isAuto ? "did you mean auto? " : "") + error.hint() + ", or auto, which measures several");
  }
}

void readCodecs(Config& config, Settings& settings) {
  const bool isMap = config.isMap("codec");
  // There is one more cut than there are bodies.
  Place all;
  all.lastCut = static_cast<int>(settings.bodies());
  std::vector<Flow> flows = all.flows();
  for (int cut = 1; cut < all.lastCut; ++cut) {
    flows.insert(flows.end(), {activationAt(cut), gradientAt(cut)});
  }
  for (const Flow each : flows) {
    const std::string flow = flowName(each);
    const std::string path = isMap ? "codec." + flow : "codec";
    std::string spec = config.text(path, kDefaultCodec);
    checkAt(config, path, [&] {
      if (const auto given = autoCodec(spec)) {
        settings.autoCodecs[flow] = given->choices;
        settings.autoBudget = settings.autoBudget.stricter(given->budget);
        spec = given->start;
      } else {
        checkCodec(spec);
      }
    });
    settings.codecs[flow] = spec;
  }
}

void addCodecs(Table& table) {
  table.add("codec", "text", "", "`auto`",
            "codec of all flows, or a map with one codec per flow; see [codecs](#codecs)",
            readCodecs);
  const std::pair<Flow, const char*> flows[] = {{activationAt(0), "head to body"},
                                                {activationAt(1), "body to tail"},
                                                {gradientAt(1), "tail to body"},
                                                {gradientAt(0), "body to head"}};
  for (const auto& [flow, way] : flows) {
    table.add("codec." + flowName(flow), "text", "", "`auto`", way, nullptr);
  }
}

void refuseLoneWait(Config& config, const Settings& settings) {
  const StageWait& wait = settings.wait;
  const auto refuse = [&](const std::string& lone, const std::string& missing, const char* why) {
    throw UsageError("bad-wait",
                     config.where("wait." + lone) + ": wait." + lone + " is set without wait." +
                         missing + ": " + why,
                     "set wait." + missing + " too");
  };
  constexpr const char* kNoInput =
      "if the forward action only waits, the backward action has no input";
  if (wait.f1 && !wait.b1) refuse("F1", "B1", kNoInput);
  if (wait.f2 && !wait.b2) refuse("F2", "B2", kNoInput);
  if (wait.w2 && !wait.b2) refuse("W2", "B2", "the two parts of a backward must both wait");
}

void addWaits(Table& table) {
  struct Row {
    const char* name;
    std::optional<double> StageWait::*field;
    const char* meaning;
  };
  constexpr Row kRows[] = {
      {"wait.F1", &StageWait::f1,
       "[waits](#calibrated-waiting) this long instead of computing HeadForward, per micro-batch"},
      {"wait.T3", &StageWait::t3, "waits this long instead of computing TailStep"},
      {"wait.B1", &StageWait::b1,
       "waits this long instead of computing HeadBackward; required with `wait.F1`"},
      {"wait.F2", &StageWait::f2,
       "waits this long instead of computing BodyForward; requires `wait.allowed` on the server"},
      {"wait.B2", &StageWait::b2,
       "waits this long instead of computing BodyBackward; required with `wait.F2`; requires "
       "`wait.allowed` on the server"},
      {"wait.W2", &StageWait::w2,
       "waits this long instead of computing BodyWeights; requires `wait.B2`; BodyBackward waits "
       "for both unless the schedule is `zb`; requires `wait.allowed` on the server"},
  };
  Table::Row* last = nullptr;
  for (const Row& row : kRows) {
    last = &table.add(row.name, numberType(0, kMaxWait), "ms", "none", row.meaning,
                      [row](Config& config, Settings& s) {
                        if (!config.has(row.name)) return;
                        s.wait.*row.field = config.number(row.name, 0, kMaxWait);
                      });
  }
  last->then(refuseLoneWait);
}

void checkDirectAddresses(Config& config, Settings& settings) {
  const std::size_t count = settings.directAddresses.size();
  const std::string place = config.where("connect.direct_addresses") + ": connect.direct_addresses";
  for (const std::string& each : settings.directAddresses) parseEndpoint({place, each}, 1);
  if (count == 0 || count + 1 == settings.bodies()) return;
  throw UsageError("bad-servers",
                   fmt::format("{} lists {}, but the run has {}", place, countText(count, "server"),
                               countText(settings.bodies(), "server")),
                   "give one address for each server but the first");
}

void addCodecDeviceLink(Table& table) {
  table.section("Codec, device, link");
  addCodecs(table);
  table.add(
      "quality.every", "integer", "steps", "100 if a codec is `auto`, else 0",
      "checks every N steps [what lossy codecs cost in quality](codecs.md#quality), and sends "
      "less lossy tensors if it is too much; 0: no checks",
      [](Config& config, Settings& s) {
        constexpr std::int64_t kDefault = 100;
        s.quality.every = static_cast<std::uint64_t>(
            config.integer("quality.every", 0, kMany, s.autoCodecs.empty() ? 0 : kDefault));
      });
  table.number(
      "quality.max_loss_increase", "", 0, 1e6,
      [](Settings & s) -> auto& { return s.quality.maxLossIncrease; },
      "how much higher the loss may be with the codecs than without, relative to the loss");
  table.number(
      "quality.min_snr", "dB", -1000, 1000, [](Settings & s) -> auto& { return s.quality.minSnr; },
      "lowest signal-to-noise ratio of a tensor that the client sends or receives");
  table.add("non_finite", "`fail`, `raw`", "", "`fail`",
            "if a codec cannot encode NaN or infinity: `fail` ends the run, `raw` sends that "
            "tensor uncompressed",
            [](Config& config, Settings& s) {
              s.rawNonFinite = config.text("non_finite", "fail", {"fail", "raw"}) == "raw";
            });
  table
      .text("device", "`cpu`, `cuda`, `cuda:N`", &Settings::device,
            "device for head and tail; see [GPUs](#gpus)")
      .mayChange()
      .then([](Config& config, Settings& s) {
        checkAt(config, "device", [&] { checkDeviceName(s.device); });
      });
  table
      .integer("threads.client", "", 0, 1024, &Settings::clientThreads,
               "number of compute threads; 0: all usable cores, or half of them if client and "
               "server share the machine")
      .mayChange();
  table.integer("threads.server", "", 0, 1024, &Settings::serverThreads,
                "number of threads requested from the server; 0: the server chooses");
  table
      .boolean(
          "tls.enabled", [](Settings & s) -> auto& { return s.tls.enabled; },
          "TLS 1.3 to `--server`; `--tls DIR` sets both `tls` keys")
      .mayChange();
  table
      .text(
          "tls.folder", "path", [](Settings & s) -> auto& { return s.tls.folder; },
          "folder with `ca.crt`, `client.crt`, `client.key`")
      .mayChange();
  table.add("servers", "list of `HOST:PORT`", "", "`[]`",
            "the servers, one per body, if `--server` is not given: [several "
            "servers](#several-servers); `HOST:PORT+HOST:PORT`: [replicas](#replicas)",
            [](Config& config, Settings& s) {
              s.servers = config.texts("servers", std::vector<std::string>{});
            });
  table
      .boolean("connect.direct", &Settings::hasDirectLinks,
               "with several servers: neighbouring servers exchange their tensors over [direct "
               "links](#direct-links-between-servers) instead of through the client")
      .mayChange();
  table
      .add("connect.direct_addresses", "list of `HOST:PORT`", "", "those of `servers`",
           "the addresses at which each server but the first is reached by the server before it, "
           "if they differ from the client's",
           [](Config& config, Settings& s) {
             s.directAddresses =
                 config.texts("connect.direct_addresses", std::vector<std::string>{});
           })
      .mayChange()
      .then(checkDirectAddresses);
  table
      .number("connect.retry_seconds", "s", 0, 1e6, &Settings::retrySeconds,
              "how long to retry if no server answers, or if a full server asks the client to "
              "retry later")
      .mayChange();
  table
      .number("connect.reconnect_seconds", "s", 0, 1e6, &Settings::reconnectSeconds,
              "how long to try to reconnect if the connection breaks, counted from the first break "
              "since the last step or byte; 0: the run then ends")
      .mayChange();
  table
      .number("connect.progress_seconds", "s", 0, 1e6, &Settings::progressSeconds,
              "how long to wait for a server that answers, but makes no step and no byte of "
              "progress; 0: without limit")
      .mayChange();
  table
      .number(
          "checkpoint.every_seconds", "s", 0, 1e6,
          [](Settings & s) -> auto& { return s.checkpoint.everySeconds; },
          "time between two checkpoints, from which a run continues after a crash; 0: no "
          "time-based "
          "checkpoints")
      .mayChange();
  table
      .integer(
          "checkpoint.every_steps", "", 0, kMany,
          [](Settings & s) -> auto& { return s.checkpoint.everySteps; },
          "also makes a checkpoint every N steps; 0: no step-based checkpoints")
      .mayChange();
  table
      .integer(
          "checkpoint.keep", "", 1, 8, [](Settings & s) -> auto& { return s.checkpoint.keep; },
          "number of checkpoints that each side keeps; if one is damaged, the run continues from "
          "an "
          "older one")
      .mayChange();
  table
      .add("checkpoint.on_failure", "`warn`, `stop`", "", "`warn`",
           "if a checkpoint cannot be made, for example on a full disk: `warn` continues the run, "
           "`stop` ends it",
           [](Config& config, Settings& s) {
             s.checkpoint.mustSucceed =
                 config.text("checkpoint.on_failure", "warn", {"warn", "stop"}) == "stop";
           })
      .mayChange();
  table
      .boolean(
          "kept_samples.on_disk", &Settings::samplesOnDisk,
          "whether the samples that `delta` keeps are in a file in the run's folder instead of "
          "memory; the server decides for itself")
      .mayChange();
  table.boolean("probe.first", &Settings::probeFirst,
                "measures the link before training, as `--probe` does");
  table.number("probe.seconds", "s", 0.1, 300, &Settings::probeSeconds,
               "approximate time limit of that measurement");
  table
      .integer("metrics.error_every", "tensors", 0, kMany, &Settings::errorEvery,
               "measures the codec's error on one tensor in N; 0: never")
      .mayChange();
  table
      .add("metrics.rotate", "`off`, or 64kB … 1GB", "", "`off`",
           "size at which a CSV file is rotated; its rows then continue in a new file",
           [](Config& config, Settings& s) { s.rotateBytes = readRotateBytes(config); })
      .mayChange();
  table
      .boolean("metrics.tensorboard", &Settings::tensorBoard,
               "also writes the [figures for TensorBoard](tracking.md#tensorboard) into the run's "
               "folder `tensorboard`")
      .mayChange();
  table
      .add("metrics.listen", "`ADDRESS:PORT`", "", "none",
           "serves metrics to [Prometheus](metrics.md#prometheus), such as `127.0.0.1:9465`",
           [](Config& config, Settings& s) { s.metrics = readMetricsSettings(config); })
      .mayChange();
  table
      .add("metrics.anywhere", "boolean", "", "`false`",
           "allows `metrics.listen` to be an address other than loopback, without TLS", nullptr)
      .mayChange();
  addWaits(table);
}

const Table& table() {
  static const Table kTable = [] {
    Table made;
    addRunAndModel(made);
    addData(made);
    addTraining(made);
    addCodecDeviceLink(made);
    return made;
  }();
  return kTable;
}

}  // namespace

std::vector<KeyText> clientKeys() { return table().texts(); }

ClientSettings readClientSettings(Config& config) {
  refuseKeysOf(config, "cleave-server serve", {"listen", "models", "limits", "access", "store"});
  ClientSettings settings = table().read(config);
  settings.resolved = config.resolved();
  const LossSpec& loss = settings.scores.loss;
  if (findLoss(loss.name).target == TargetKind::classes)
    settings.data.keys.ignoredLabel = loss.ignoreIndex;
  return settings;
}

std::map<std::string, std::string> valuesOf(const Config& config, const ClientSettings& settings) {
  std::map<std::string, std::string> values = config.values();
  const auto all = values.extract("codec");
  if (all.empty()) return values;
  for (const auto& [flow, codec] : settings.codecs) values["codec." + flow] = all.mapped();
  return values;
}

}  // namespace cleave
