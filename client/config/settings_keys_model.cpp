// The keys of the run and its model: cuts, adapters, learned inserts, initial weights.
#include "client/config/settings_keys.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/core/names.h"
#include "common/core/units.h"
#include "common/run/config_errors.h"

namespace cleave::client_keys {
namespace {

void readModel(Config& config, Settings& settings) {
  ModelSpec& model = settings.model;
  model.name = config.text("model.name");
  checkAt(config, "model.name", [&] { findModel(model.name); });
  if (model.name == "graph") return;  // has no parameters, so other keys are unknown
  for (const std::string& key : config.keys("model")) {
    // If it is one of these misspelt, it is refused as an unknown key.
    if (!nearestName(key, {"name", "cuts", "file", "lora"}).empty()) continue;
    model.parameters[key] = config.text("model." + key);
  }
}

void readModelFile(Config& config, Settings& settings) {
  const bool isGraph = settings.model.name == "graph";
  if (!isGraph && !config.has("model.file")) return;
  settings.modelFile = config.text("model.file");
  if (isGraph) return;
  throw UsageError(
      "bad-model-parameter",
      config.where("model.file") + ": the model " + settings.model.name + " takes no file",
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
  if (settings.model.name == "graph") {
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
      {"of", "`sleep`: the model that is divided"},
      {"at", "`sleep`: where it is divided, as positions of its blocks, such as `4-13`"},
      {"F1", "`sleep`: milliseconds of HeadForward, per micro-batch"},
      {"T3", "`sleep`: milliseconds of TailStep"},
      {"B1", "`sleep`: milliseconds of HeadBackward"},
      {"F2", "`sleep`: milliseconds of BodyForward"},
      {"B2", "`sleep`: milliseconds of BodyBackward, without BodyWeights"},
      {"W2",
       "`sleep`: milliseconds of BodyWeights, which is part of BodyBackward unless the schedule is "
       "`zb`"},
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
    table.add("model." + name, values, "", preset, parameterMeaning(name), nullptr).sent();
  }
}

void readInserts(Config& config, Settings& settings) {
  const std::size_t count = config.items("insert");
  for (std::size_t i = 0; i < count; ++i) {
    const std::string item = fmt::format("insert[{}].", i);
    InsertSpec& insert = settings.inserts.emplace_back();
    insert.cut = static_cast<std::uint32_t>(config.integer(item + "cut", 0, kMaxServers));
    insert.kind = config.text(item + "kind", std::nullopt, listOf(insertTable()));
    insert.parameters = readParameters(config, item, findInsert(insert.kind).parameters);
  }
}

// The rows of parameters only document the keys: the row `insert.cut` reads their values.
void addInsertKeys(Table& table) {
  table
      .add("insert.cut", integerType(0, kMaxServers), "", "none",
           "`insert: {cut: 0, kind: conv, …}`, or a list of such maps: [learned "
           "inserts](models.md#learned-inserts) that make the tensors at a cut smaller; the first "
           "cut has the number 0",
           readInserts)
      .sent();
  std::string kinds;
  for (const InsertRow& row : insertTable()) {
    kinds += fmt::format("{}`{}`: {}", kinds.empty() ? "" : "; ", row.name, row.description);
  }
  table.add("insert.kind", namesOf(insertTable()), "", "required", kinds, nullptr).sent();
  std::vector<KindParameters> all;
  for (const InsertRow& row : insertTable()) all.push_back({row.name, row.parameters});
  addParameterKeys(table, "insert", all, true);
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

void readLora(Config& config, Settings& settings) {
  if (config.keys("model.lora").empty()) return;
  LoraSpec& lora = settings.lora;
  lora.rank = config.integer("model.lora.rank", 0, 4096, 0);
  if (lora.rank > 0 && settings.model.name != "graph") {
    throw UsageError("bad-lora",
                     config.where("model.lora.rank") + ": the model " + settings.model.name +
                         " cannot have adapters",
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

}  // namespace

void addRunAndModel(Table& table) {
  table.section("Run and model");
  table.text("run.name", "text", &Settings::name,
             "the run ID is `NAME-YYYYMMDD-hhmmss-xxxxxx`, in UTC; NAME is the first 40 characters "
             "of this name in lower case, with `-` for everything except letters and digits");
  addFields(table, "run.");
  table
      .text("known_as.data", "text", field(&Settings::knownAs, &KnownAs::data),
            "what published figures call the data, for the comparison of a "
            "[sweep](sweep.md#published-figures); default: `data.format`")
      .mayChange();
  table
      .text("known_as.model", "text", field(&Settings::knownAs, &KnownAs::model),
            "the same for the model; default: `model.name`")
      .mayChange();
  table
      .text("known_as.start", "text", field(&Settings::knownAs, &KnownAs::start),
            "the same for its initial weights, such as `pretrained`; default: `pretrained` with "
            "`weights.file`, otherwise `scratch`")
      .mayChange();
  table
      .add("model.name", namesOf(modelTable()), "", "required",
           "the model; `cleave-client models` lists all models", readModel)
      .sent();
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

}  // namespace cleave::client_keys
