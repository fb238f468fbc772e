// What a resumed run may change: every key of the client's configuration is tried.
#include "client/config/setting_changes.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "client/config/learning_rate.h"
#include "client/config/settings.h"
#include "client/data/formats/formats.h"
#include "common/model/inserts.h"
#include "common/model/model.h"
#include "common/model/optimizer.h"
#include "common/run/experiment_fields.h"
#include "tests/support/files/memory_files.h"

namespace cleave {
namespace {

using Catch::Matchers::Contains;
using Texts = std::vector<std::string>;
using Values = std::map<std::string, std::string>;

constexpr const char* kBase = R"(
model: {name: mlp, width: 32, depth: 2}
data: {format: synthetic, shape: [1, 8, 8]}
train: {batch: 32}
codec: none
)";

Values valuesWith(const Texts& overrides) {
  Config config = Config::parse(kBase, "config.yaml", overrides);
  const ClientSettings settings = readClientSettings(config);
  return valuesOf(config, settings);
}

// Values that some key of this type accepts.
Texts candidates(const KeyText& key) {
  Texts values;
  static const std::regex quoted("`([^`]*)`"), range("[a-z]*, (-?[0-9.e-]+) … (-?[0-9.e]+)");
  for (std::sregex_iterator each(key.type.begin(), key.type.end(), quoted), end; each != end;
       ++each) {
    values.push_back((*each)[1]);
  }
  std::smatch limits;
  if (std::regex_match(key.type, limits, range)) {
    values.insert(values.end(), {limits[1], limits[2]});
  }
  for (const char* value : {"1",
                            "2",
                            "0.5",
                            "true",
                            "false",
                            "x",
                            "cpu",
                            "cuda",
                            "loss",
                            "[1, 2]",
                            "[2, 2]",
                            "[0.5]",
                            "[0.5, 1]",
                            "[0.9, 1]",
                            "[a, b]",
                            "['*']",
                            "['a.*:learning_rate=2']",
                            "[top1]",
                            "['127.0.0.1:1']",
                            "127.0.0.1:9465",
                            "64kB",
                            "[x=y]",
                            "[a]",
                            "[x, y]",
                            "[head]",
                            "fp16"}) {
    values.emplace_back(value);
  }
  return values;
}

// Configurations in which keys have an effect, as overrides.
std::vector<Texts> bases() {
  std::vector<Texts> all = {
      {},
      {"model={name: graph, file: a.pt2, cuts: [a, b], lora: {rank: 4, targets: [a]}}"},
      {"model={name: mobilenet_v2}"},
      {"weights={file: a.safetensors}"},
      {"keep.best={metric: loss}"},
      {"train.stop={metric: loss}"},
      {"eval.target.value=1"},
      {"data.folds=5"},
      {"model={name: sleep, F1: 1, B1: 1, F2: 1, B2: 1, W2: 1}"},
      {"metrics.listen=127.0.0.1:9465"},
      {"cohort={id: a, members: [x, '1'], member: x}"},
      {"model.cuts=[1, 2, 3]"},
      {"train.loss=mse"},
      {"codec={}"},
      {"train.optimizer={name: sgd, momentum: 0.9}"}};
  for (const LearningRateRow& row : learningRateTable()) {
    all.push_back({fmt::format("train.learning_rate.schedule={}", row.name)});
  }
  for (const OptimizerRow& row : optimizerTable()) {
    all.push_back({fmt::format("train.optimizer={{name: {}}}", row.name)});
  }
  for (const DataFormatRow& row : dataFormatTable()) {
    Texts base = {fmt::format("data={{format: {}}}", row.name)};
    for (const KeyText& key : row.keys().texts()) {
      if (key.defaultValue.find("required") == std::string::npos) continue;
      base.push_back(key.name + (key.type.starts_with("list")      ? "=[1, 8, 8]"
                                 : key.type.starts_with("integer") ? "=8"
                                                                   : "=x"));
    }
    all.push_back(base);
  }
  return all;
}

struct Change {
  Values before, after;
};

// A change of this key that the configuration accepts.
std::optional<Change> changeOf(const KeyText& key) {
  const Texts tried = candidates(key);
  for (const Texts& base : bases()) {
    for (const std::string& value : tried) {
      Texts changed = base;
      changed.push_back(key.name + "=" + value);
      try {
        Change change{valuesWith(base), valuesWith(changed)};
        const auto valueIn = [&](const Values& values) {
          const auto found = values.lower_bound(key.name);
          const bool isFound = found != values.end() && found->first.starts_with(key.name);
          return isFound ? found->second : "";
        };
        if (valueIn(change.before) != valueIn(change.after)) return change;
      } catch (const UsageError&) {  // not a value of this key, or not with this base
      }
    }
  }
  return std::nullopt;
}

// The items of lists of maps cannot be overridden one by one. `list`: the key of the list. `item`:
// what each item has besides its kind and that kind's parameters.
template <typename Rows>
std::optional<Change> changeOfItem(const Rows& rows, const std::string& list,
                                   const std::string& item, const std::string& name) {
  for (const auto& row : rows) {
    std::string parameters;
    for (const ParameterRow& each : row.parameters) {
      parameters += fmt::format(", {}: {}", each.name, each.defaultValue.value_or(each.max));
    }
    const Values before =
        valuesWith({fmt::format("{}={{{}kind: {}{}}}", list, item, row.name, parameters),
                    "privacy.key_file=k"});
    Values after = before;
    const auto found = after.find(list + "[0]." + name);
    if (found == after.end()) continue;
    found->second = "x";
    return Change{before, after};
  }
  return std::nullopt;
}

std::optional<Change> changeOfAny(const KeyText& key) {
  const std::size_t dot = key.name.rfind('.');
  const std::string list = key.name.substr(0, dot);
  const std::string name = key.name.substr(dot + 1);
  if (list == "insert") return changeOfItem(insertTable(), list, "cut: 0, ", name);
  if (list == "privacy.defence") return changeOfItem(defenceTable(), list, "", name);
  return changeOf(key);
}

TEST_CASE("every key is fixed, and named if it is changed, or may change") {
  std::size_t fixed = 0, free = 0;
  for (const KeyText& key : clientKeys()) {
    CAPTURE(key.name, key.type);
    const auto change = changeOfAny(key);
    REQUIRE(change);  // otherwise add a value to candidates(), or a configuration to bases()
    try {
      const auto changes = changesBetween(change->before, change->after, "runs/R", {});
      CHECK(key.mark == KeyMark::mayChange);
      CHECK(std::any_of(changes.begin(), changes.end(), [&](const SettingChange& each) {
        return each.key == key.name && each.before != each.after;
      }));
      ++free;
    } catch (const UsageError& error) {
      CHECK(key.mark != KeyMark::mayChange);
      CHECK(error.code() == "other-run-spec");
      CHECK_THAT(error.what(), Contains(key.name.substr(key.name.rfind('.') + 1)));
      CHECK_THAT(error.hint(), Contains("cleave-client keys"));
      ++fixed;
    }
  }
  CHECK(fixed > 100);
  CHECK(free > 20);
}

TEST_CASE("the keys that are sent to servers are those of the run spec's fields") {
  const auto isPartOf = [](std::string_view name, std::string_view whole) {
    return name == whole || name.starts_with(std::string(whole) + ".");
  };
  const auto isOneOf = [&](std::string_view field, std::string_view key) {
    return isPartOf(key, field) || isPartOf(field, key);
  };
  Texts sent, fields;
  for (const KeyText& key : clientKeys()) {
    if (key.mark == KeyMark::sent) sent.push_back(key.name);
  }
  for (const ExperimentField& field : experimentFields()) fields.emplace_back(field.name);
  for (const std::string& field : fields) {
    CAPTURE(field);
    CHECK(std::ranges::any_of(sent, [&](const auto& key) { return isOneOf(field, key); }) ==
          (field != "replicas"));  // the number of servers in `servers` or --server
  }
  for (const std::string& key : sent) {
    CAPTURE(key);
    CHECK(std::ranges::any_of(fields, [&](const auto& field) { return isOneOf(field, key); }) ==
          (key != "train.groups"));  // in the field train.optimizer
  }
}

// A key must not begin to be changeable by accident.
TEST_CASE("only these keys may change") {
  Texts names;
  for (const KeyText& key : clientKeys()) {
    if (key.mark == KeyMark::mayChange) names.push_back(key.name);
  }
  CHECK(names == Texts{"known_as.data",
                       "known_as.model",
                       "known_as.start",
                       "data.class_names",
                       "data.skip",
                       "data.threads",
                       "train.epochs",
                       "train.max_steps",
                       "train.learning_rate.schedule",
                       "train.learning_rate.peak",
                       "train.learning_rate.warmup_epochs",
                       "train.learning_rate.end",
                       "train.learning_rate.power",
                       "keep.last",
                       "train.stop.patience",
                       "train.stop.min_change",
                       "eval.target.value",
                       "eval.target.metric",
                       "train.clip_norm",
                       "eval.every",
                       "device",
                       "threads.client",
                       "tls.enabled",
                       "tls.folder",
                       "connect.direct",
                       "connect.direct_addresses",
                       "connect.retry_seconds",
                       "connect.reconnect_seconds",
                       "connect.progress_seconds",
                       "checkpoint.every_seconds",
                       "checkpoint.every_steps",
                       "checkpoint.keep",
                       "checkpoint.on_failure",
                       "kept_samples.on_disk",
                       "metrics.error_every",
                       "metrics.rotate",
                       "metrics.tensorboard",
                       "metrics.listen",
                       "metrics.anywhere",
                       "privacy.detect",
                       "privacy.detect_every"});
}

TEST_CASE("the error names all fixed keys with both values, and no others") {
  const Values before =
      valuesWith({"data={format: folder, train: {folder: a}, test: {folder: b}}"});
  const Values after =
      valuesWith({"data={format: folder, train: {folder: a}, test: {folder: b}, "
                  "augment: {flip: true}, sampling: balanced}",
                  "train.epochs=4"});
  try {
    changesBetween(before, after, "runs/R", {});
    FAIL("nothing was thrown");
  } catch (const UsageError& error) {
    CHECK(error.key() == "data.augment.flip");
    CHECK_THAT(error.what(),
               Contains("the run in runs/R cannot change data.augment.flip from false "
                        "to true, data.sampling from uniform to balanced"));
    CHECK_THAT(error.what(), !Contains("epochs"));
  }
}

TEST_CASE("a codec for all flows equals a map with it for each") {
  const Values all = valuesWith({"codec=fp16"});
  CHECK(changesBetween(all,
                       valuesWith({"codec={activation/0: fp16, activation/1: fp16, gradient/0: "
                                   "fp16, gradient/1: fp16}"}),
                       "R", {})
            .empty());
}

TEST_CASE("the error names the key that --set has, and not those that follow from it") {
  const auto error = [](const Texts& before, const Texts& overrides) -> std::string {
    Texts after = before;
    after.insert(after.end(), overrides.begin(), overrides.end());
    try {
      changesBetween(valuesWith(before), valuesWith(after), "R", overrides);
    } catch (const UsageError& refused) {
      CHECK(refused.key() == overrides.back().substr(0, overrides.back().find('=')));
      return refused.what();
    }
    return "";
  };
  const std::string begin = "the run in R cannot change ";
  CHECK(error({}, {"weights.file=a.safetensors"}) ==
        begin + "weights.file from no value to a.safetensors");
  CHECK(error({}, {"train.epochs=4", "run.seed=7"}) == begin + "run.seed from 1 to 7");
  CHECK(error({}, {"codec=fp16"}) == begin + "codec from none to fp16");
  CHECK(error({"codec={gradient/0: bf16}"}, {"codec.gradient/0=fp16"}) ==
        begin + "codec.gradient/0 from bf16 to fp16");
  CHECK(error({}, {"train.optimizer=adam"}) == begin + "train.optimizer from sgd to adam");
  CHECK(error({}, {"weights={file: a.safetensors, partial: true}"}) == begin + "weights");
}

TEST_CASE("changes are recorded with the step after which they apply") {
  MemoryFiles files;
  const auto record = [&] {
    return nlohmann::json::parse(files.read("R/changes.json").value_or("[]"));
  };
  recordChanges(files, "R", {}, 8, {});
  CHECK_FALSE(files.read("R/changes.json"));
  recordChanges(files, "R", {{"train.epochs", "2", "4"}}, 8, {{"train.epochs", "2"}});
  recordChanges(files, "R", {{"train.clip_norm", "0", "1"}}, 24, {{"train.epochs", "4"}});
  const Values applied = {{"train.epochs", "4"}, {"train.clip_norm", "1"}};
  CHECK(record() == nlohmann::json::parse(R"([
      {"step": 8, "key": "train.epochs", "before": "2", "after": "4"},
      {"step": 24, "key": "train.clip_norm", "before": "0", "after": "1"}])"));

  SECTION("if the run continues from an earlier checkpoint, later changes apply earlier") {
    recordChanges(files, "R", {}, 16, applied);
    CHECK(record().at(0).at("step") == 8);
    CHECK(record().at(1).at("step") == 16);
  }
  SECTION("a change that a killed process recorded, but did not apply, is removed") {
    const Values stored = {{"train.epochs", "4"}, {"train.clip_norm", "0"}};
    SECTION("if the run continues without it") {
      recordChanges(files, "R", {}, 24, stored);
      CHECK(record().size() == 1);
      CHECK(record().at(0).at("key") == "train.epochs");
    }
    SECTION("if it is made again") {
      recordChanges(files, "R", {{"train.clip_norm", "0", "1"}}, 24, stored);
      CHECK(record().size() == 2);
    }
    SECTION("but not an earlier change of the same step") {
      recordChanges(files, "R", {{"train.clip_norm", "1", "2"}}, 24, applied);
      recordChanges(files, "R", {}, 24, applied);
      REQUIRE(record().size() == 2);
      CHECK(record().at(1).at("after") == "1");
    }
  }
  SECTION("a damaged record is replaced") {
    files.write("R/changes.json", "[{\"step\": -1}]");
    recordChanges(files, "R", {{"train.clip_norm", "1", "2"}}, 30, applied);
    CHECK(record().size() == 1);
  }
}

}  // namespace
}  // namespace cleave
