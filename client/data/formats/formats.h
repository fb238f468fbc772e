// The table of data formats (`data.format`). To add one, write a Dataset and a row in formats.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/data/samples/dataset.h"
#include "common/config/config_table.h"

namespace cleave {

enum class DataSplit : std::uint8_t {
  train,
  test,
  input,  // samples for predictions; they have no target, so 0 is used
};

// The values of all formats' keys below `data`. A format reads only its own keys.
struct DataFormatKeys {
  // The training set's learned(), for the splits test and input. This member and those up to
  // dataSeed are not keys of the formats.
  nlohmann::json learned;
  std::vector<std::string> inputs;  // for the split input: files and folders
  bool needsTest = true;            // if false, the split test is not opened
  // If the loss compares with classes: the target that it ignores.
  std::optional<std::int64_t> ignoredLabel;
  // Whether formats with `shuffles` open the training set in a random order, so that a part of it
  // can be evaluated.
  bool isShuffled = false;
  // Receives the damaged parts of a split, which are then left out: see DamageReport.
  std::function<void(DataSplit, const std::string& name, const DataError&)> damage;

  std::uint64_t seed = 1;      // run.seed
  std::uint64_t dataSeed = 1;  // data.seed, which all formats have
  int classes = 10;
  ImageOptions image;
  std::string trainImages, trainLabels, testImages, testLabels;
  std::string folder;
  std::string labels = "fine";
  std::vector<std::int64_t> shape;
  double noise = 1;
  std::uint32_t trainSize = 1024, testSize = 256;
  std::string trainFile, testFile;
  std::string trainFolder, testFolder;
  int channels = 3;
  std::string target = "labels";
  // text and csv
  std::string tokenizer, padToken;
  std::uint32_t length = 0;  // tokens per sample
  std::string textColumn = "text", pairColumn;
  std::string labelColumn = "label";
  std::string targetType = "class";
  std::string decimal = "auto";
  std::vector<std::string> numericColumns, categoricalColumns, ignoredColumns;
  std::string missing = "error";
};

struct DataFormatRow {
  std::string_view name;         // "idx"
  std::string_view description;  // one line
  const ConfigTable<DataFormatKeys>& (*keys)();
  // Opens a split. Throws UsageError if the split is missing or damaged, and "no-predict" for the
  // split `input` if the format does not support predictions.
  std::unique_ptr<Dataset> (*open)(const DataFormatKeys& keys, DataSplit split);
  bool shuffles = false;  // whether open() heeds isShuffled
};
std::span<const DataFormatRow> dataFormatTable();
// Throws UsageError with the nearest known name.
const DataFormatRow& findDataFormat(std::string_view name);
// The key whose value is at the beginning of the sentence, such as "data.train.images"; empty:
// none.
std::string keyOfPath(const DataFormatKeys& keys, std::string_view sentence);
// The report for the damage of this split; null without `keys.damage`. `keys` must outlive it.
DamageReport damageOf(const DataFormatKeys& keys, DataSplit split);
// The file or folder of a split; with several, the first.
std::string pathOf(const DataFormatKeys& keys, DataSplit split);
// The keys of all formats. A key's description begins with the formats that have the key.
std::vector<KeyText> dataFormatKeys();

}  // namespace cleave
