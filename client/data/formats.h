// The table of data formats (`data.format`). To add one, write a Dataset and a row in formats.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/data/dataset.h"
#include "common/core/config_table.h"

namespace cleave {

enum class DataSplit : std::uint8_t {
  train,
  test,
  input,  // samples without a target, for predictions; the target is 0
};

// The values of the formats' keys, all below `data`. A format reads only its own.
struct DataFormatKeys {
  // Not keys. `learned`, for the splits test and input: the training set's learned().
  nlohmann::json learned;
  std::vector<std::string> inputs;  // for the split input: files and folders
  // If false, the split test is not opened, and the last training samples may be held out.
  bool needsTest = true;

  std::uint64_t seed = 1;      // of the run
  std::uint64_t dataSeed = 1;  // data.seed, a key of all formats
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
  std::uint32_t length = 0;  // tokens of a sample
  std::string textColumn = "text", pairColumn;
  std::string labelColumn = "label";
  std::string targetType = "class";
  std::vector<std::string> numericColumns, categoricalColumns;
  std::string missing = "error";
};

struct DataFormatRow {
  std::string_view name;         // "idx"
  std::string_view description;  // one line
  const ConfigTable<DataFormatKeys>& (*keys)();
  // Opens a split. Throws UsageError if it is missing or damaged; "no-predict" if the format has no
  // split `input`.
  std::unique_ptr<Dataset> (*open)(const DataFormatKeys& keys, DataSplit split);
};
std::span<const DataFormatRow> dataFormatTable();
// Throws UsageError with the nearest known name.
const DataFormatRow& findDataFormat(std::string_view name);
// The keys of all formats; each description begins with the formats that have the key.
std::vector<KeyText> dataFormatKeys();

}  // namespace cleave
