// The keys of the data that every format has.
#include "client/config/settings_keys.h"

#include <spdlog/fmt/fmt.h>

#include <string>

#include "client/data/files/csv_file.h"

namespace cleave::client_keys {
namespace {

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
  table.integer("data.holdout", "samples", 0, kMany, field(&Settings::data, &DataSettings::holdout),
                "N > 0: evaluates on N training samples instead of the test set");
  table.integer(
      "data.folds", "", 0, 1000, field(&Settings::data, &DataSettings::subset, &DataSubset::folds),
      "K > 1: divides the samples of each class into K parts, evaluates on one part and trains on "
      "the others; the test set is not opened");
  table
      .integer("data.fold", "", 1, 1000,
               field(&Settings::data, &DataSettings::subset, &DataSubset::fold),
               "the part to evaluate on if `data.folds` is set, 1 … K")
      .then(checkFolds);
  table.integer("data.train.per_class", "samples", 0, kMany,
                field(&Settings::data, &DataSettings::subset, &DataSubset::perClass),
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

}  // namespace

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
          "data.skip", "samples", 0, kMany, field(&Settings::data, &DataSettings::skip),
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
          "data.threads", "", 0, 256, field(&Settings::data, &DataSettings::threads),
          "number of threads that prepare samples; it does not affect the results; 0: one thread, "
          "or all usable cores (at most 16) if a sample takes longer than 0.3 ms")
      .mayChange()
      .then(readFormatKeys);
  table.add("data.holdout_from", "`random`, `end`", "", "`random`; `end` for plain text",
            "which samples `data.holdout` takes: `random`: a random selection, the same for every "
            "`run.seed`; `end`: the last ones, for example of a time series",
            readHoldoutFrom);
}

}  // namespace cleave::client_keys
