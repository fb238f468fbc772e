// The keys of training and evaluation: batches, schedules, the optimizer, what is trained.
#include "client/config/settings_keys.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <vector>

#include "client/config/learning_rate.h"
#include "common/run/config_errors.h"

namespace cleave::client_keys {
namespace {

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
    table
        .add(fmt::format("train.optimizer.{}", row.name), fmt::format("number, {}", row.range), "",
             row.hasOneDefault ? defaultText(row.firstDefault) : row.defaults, row.optimizers,
             nullptr)
        .sent();
  }
}

void addLearningRate(Table& table) {
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
      .number("train.learning_rate.peak", "", 0, 1e6,
              field(&Settings::learningRate, &LearningRateOptions::peak),
              "rate after the warm-up; short form: `learning_rate: 0.01`")
      .mayChange();
  table
      .number("train.learning_rate.warmup_epochs", "epochs", 0, 1e6, &Settings::warmupEpochs,
              "linear warm-up")
      .mayChange();
  table
      .number("train.learning_rate.end", "", 0, 1e6,
              field(&Settings::learningRate, &LearningRateOptions::end),
              names(&LearningRateRow::decays) + ": rate of the last step")
      .mayChange()
      .onlyIf(onlyFor(&LearningRateRow::decays));
  table
      .number("train.learning_rate.power", "", 0.01, 100,
              field(&Settings::learningRate, &LearningRateOptions::power),
              names(&LearningRateRow::hasPower) + ": exponent")
      .mayChange()
      .onlyIf(onlyFor(&LearningRateRow::hasPower));
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
  table
      .add("train.freeze", "list of strings", "", "`[]`",
           "patterns of parameters that are not trained, such as `[encoder.*]`; a later pattern "
           "that begins with `!` makes exceptions: `['*', '!classifier.*']`. With `model.lora`, "
           "everything except the adapters is frozen, so only exceptions are needed. Learned "
           "inserts "
           "are frozen only by patterns that begin with `insert.`",
           [](Config& config, Settings& s) {
             for (const std::string& pattern :
                  config.texts("train.freeze", std::vector<std::string>{})) {
               s.freeze.push_back(pattern);
             }
           })
      .sent();
  table
      .add("train.groups", "list of strings", "", "`[]`",
           "separate learning rates or weight decays for parameters, by pattern; the rate is a "
           "factor: "
           "`['classifier.*:learning_rate=10', '*.bias:weight_decay=0']`. The first matching "
           "pattern "
           "applies",
           [](Config& config, Settings& s) {
             checkAt(config, "train.groups", [&] {
               for (const std::string& text :
                    config.texts("train.groups", std::vector<std::string>{})) {
                 readGroup(text, s);
               }
               checkOptimizer(s.optimizer);
             });
           })
      .sent();
  addPrecision(table, "precision.client", &Settings::clientPrecision,
               "arithmetic of head and tail; see [precision](models.md#precision)");
  addFields(table, "precision.");
  table.boolean("precision.scale_loss", &Settings::mayScaleLoss,
                "whether the loss is scaled in fp16, so that small gradients do not become 0");
}

}  // namespace

void addTraining(Table& table) {
  table.section("Training and evaluation");
  table.integer("train.batch", "samples", 1, 1 << 20, &Settings::batch, "batch size");
  addFields(table, "train.");
  table.row("train.micro_batches").then(checkMicroBatches);
  table.integer("train.epochs", "", 1, 1 << 20, &Settings::epochs, "passes over the training data")
      .mayChange();
  table
      .integer("train.max_steps", "steps", 0, kMany, &Settings::maxSteps,
               "stops after this many steps; 0: no limit")
      .mayChange();
  table
      .add("train.optimizer.name", namesOf(optimizerTable()), "", "`sgd`",
           "optimizer of head, body and tail; short form: `optimizer: adam`", readOptimizer)
      .sent();
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

}  // namespace cleave::client_keys
