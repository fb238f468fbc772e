#include "client/data/formats/formats.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <utility>

#include "client/data/formats/format_keys.h"
#include "client/data/formats/image_formats.h"
#include "common/core/names.h"

namespace cleave {

void addClasses(DataFormatTable& table) {
  table.integer("data.classes", "", 2, 1 << 20, &DataFormatKeys::classes, "number of classes");
}

void addImageKeys(DataFormatTable& table) {
  constexpr int kMaxPixels = 4096;
  const auto numbers = [&](const std::string& name, double min, const std::vector<double>& imagenet,
                           auto field, const std::string& meaning) {
    table.add(name, "number or list, " + numberType(min, 1e6).substr(8) + ", or `imagenet`", "",
              defaultText(std::invoke(field, ImageOptions{}).at(0)), meaning,
              [=](Config& config, DataFormatKeys& keys) {
                std::vector<double>& values = std::invoke(field, keys.image);
                values = config.numbers(name, min, 1e6, values, {{"imagenet", imagenet}});
              });
  };
  numbers("data.mean", -1e6, {0.485, 0.456, 0.406}, &ImageOptions::mean,
          "mean of the pixels after scaling to 0 … 1; one value, or one per channel: `[0.49, 0.48, "
          "0.45]`; `imagenet`: the means of ImageNet");
  numbers("data.std", 1e-6, {0.229, 0.224, 0.225}, &ImageOptions::stddev,
          "std of the same pixels; the model receives (pixel / 255 - mean) / std");
  table.integer(
      "data.resize", "pixels", 0, kMaxPixels,
      [](DataFormatKeys & k) -> auto& { return k.image.resize; },
      "height and width of the resized image; with `data.crop`: length of its shorter side before "
      "the crop. Bilinear, antialiased; 0: the size in the file");
  table.integer(
      "data.crop", "pixels", 0, kMaxPixels,
      [](DataFormatKeys & k) -> auto& { return k.image.crop; },
      "height and width of a crop at the centre; 0: none");
  table.boolean(
      "data.augment.flip", [](DataFormatKeys & k) -> auto& { return k.image.flip; },
      "training only: random horizontal flip");
  table.integer(
      "data.augment.crop_padding", "pixels", 0, kMaxPixels,
      [](DataFormatKeys & k) -> auto& { return k.image.cropPadding; },
      "training only: random crop of the image padded by this many pixels");
  const auto range = [&](const std::string& name, double min, double max,
                         const std::string& defaultValue, auto field, const std::string& meaning) {
    table.add(name, "list of two numbers, " + numberType(min, max).substr(8), "", defaultValue,
              meaning, [=](Config& config, DataFormatKeys& keys) {
                std::vector<double>& values = std::invoke(field, keys.image);
                values = config.numbers(name, min, max, values);
              });
  };
  range(
      "data.augment.crop_scale", 1e-4, 1, "none", &ImageOptions::cropScale,
      "training only: a random part of the image with an area in this range of fractions, such as "
      "`[0.08, 1]`, is resized to `data.crop`");
  range("data.augment.crop_ratio", 0.01, 100, "`[0.75, 1.3333333333333333]`",
        &ImageOptions::cropRatio, "range of that part's width divided by its height");
  const auto fraction = [&](const std::string& name, double max, auto field,
                            const std::string& meaning) {
    table.number(
        name, "", 0, max, [=](DataFormatKeys & k) -> auto& { return k.image.*field; },
        "training only: " + meaning);
  };
  fraction("data.augment.brightness", 10, &ImageOptions::brightness,
           "brightness changes by a random factor in 1 ± this value, at least 0");
  fraction("data.augment.contrast", 10, &ImageOptions::contrast, "the same for contrast");
  fraction("data.augment.saturation", 10, &ImageOptions::saturation, "the same for saturation");
  fraction("data.augment.hue", 0.5, &ImageOptions::hue,
           "hue shifts by a random fraction of the colour circle in ± this value");
  fraction("data.augment.erasing", 1, &ImageOptions::erasing,
           "probability that a random rectangle of 2 % to 33 % of the area is set to 0");
}

void addTestPath(DataFormatTable& table, const std::string& name,
                 std::string DataFormatKeys::*field, const std::string& meaning) {
  table.add(name, "path", "", "required", meaning, [=](Config& config, DataFormatKeys& keys) {
    if (keys.needsTest || config.has(name)) keys.*field = config.text(name);
  });
}

ImageOptions imageOf(const DataFormatKeys& keys) {
  ImageOptions image = keys.image;
  image.seed = keys.seed;
  return image;
}

void addFiles(DataFormatTable& table) {
  table.requiredText(
      "data.train.file", "path", &DataFormatKeys::trainFile,
      "the training set. `tensors`: a safetensors file, a folder of them, as "
      "`cleave_split.save_dataset` writes it, or a folder of .npy files. `text`: a .csv, "
      ".tsv or .txt file. `csv`: a .csv or .tsv file");
  table.text("data.test.file", "path", &DataFormatKeys::testFile,
             "the same for the test set; not needed with `data.holdout`");
}

void addTarget(DataFormatTable& table) {
  table.text("data.label", "text", &DataFormatKeys::labelColumn, "column of the target");
  table.choice("data.target_type", {"class", "number"}, &DataFormatKeys::targetType,
               "class: the target is a class, by name or number; number: a value, for `mse`");
  table.choice("data.decimal", {"auto", "point", "comma"}, &DataFormatKeys::decimal,
               "decimal mark of the numbers: `auto`: each column's numbers decide, and a column "
               "that does not decide is an error; `point`: 1,234.5; `comma`: 1.234,5");
}

DamageReport damageOf(const DataFormatKeys& keys, DataSplit split) {
  if (!keys.damage) return nullptr;
  return [&keys, split](const std::string& name, const DataError& error) {
    keys.damage(split, name, error);
  };
}

const std::string& fileOf(const DataFormatKeys& keys, DataSplit split) {
  if (split == DataSplit::train) return keys.trainFile;
  if (keys.testFile.empty()) {
    throw UsageError("config-missing", "data.test.file is missing",
                     "set data.test.file, or set data.holdout to hold out part of the training set "
                     "for evaluation")
        .about("data.test.file");
  }
  return keys.testFile;
}

std::vector<std::string> inputFilesOf(const DataFormatKeys& keys) {
  for (const std::string& path : keys.inputs) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(path, ignored)) continue;
    throw UsageError("no-predict", path + " is a folder, but this data format reads only files",
                     "pass the files in it");
  }
  return keys.inputs;
}

namespace {

constexpr std::int64_t kMany = std::int64_t{1} << 31;

using Keys = DataFormatKeys;
using Table = DataFormatTable;

// ---- idx ----

Table makeIdxKeys() {
  Table table;
  addClasses(table);
  table.requiredText("data.train.images", "path", &Keys::trainImages, "images, plain or gzip");
  table.requiredText("data.train.labels", "path", &Keys::trainLabels, "labels, plain or gzip");
  addTestPath(table, "data.test.images", &Keys::testImages, "images of the test set");
  addTestPath(table, "data.test.labels", &Keys::testLabels, "labels of the test set");
  addImageKeys(table);
  return table;
}

// For formats that read the samples for predictions from exactly one file.
std::string onlyInput(const Keys& keys) {
  if (keys.inputs.size() == 1) return keys.inputs.front();
  throw UsageError("no-predict",
                   "this data format reads one file of samples, but " +
                       std::to_string(keys.inputs.size()) + " are given",
                   "run the command once for each file");
}

[[noreturn]] void throwNoPredict(const std::string& format) {
  throw UsageError("no-predict",
                   "the data format " + format + " cannot read samples without labels",
                   "omit --input to use the test set");
}

std::unique_ptr<Dataset> openIdxSplit(const Keys& keys, DataSplit split) {
  const bool isTrain = split == DataSplit::train;
  IdxOptions options;
  if (split == DataSplit::input) {
    options.images = onlyInput(keys);
  } else {
    options.images = isTrain ? keys.trainImages : keys.testImages;
    options.labels = isTrain ? keys.trainLabels : keys.testLabels;
  }
  options.classes = keys.classes;
  options.image = imageOf(keys);
  options.report = damageOf(keys, split);
  return openIdx(options);
}

// ---- cifar10, cifar100 ----

void addFolder(Table& table) {
  table.requiredText("data.folder", "path", &Keys::folder, "folder of the binary files");
}

Table makeCifar10Keys() {
  Table table;
  addFolder(table);
  addImageKeys(table);
  return table;
}

Table makeCifar100Keys() {
  Table table;
  addFolder(table);
  table.choice("data.labels", {"fine", "coarse"}, &Keys::labels,
               "fine: 100 classes; coarse: 20 classes");
  addImageKeys(table);
  return table;
}

std::unique_ptr<Dataset> openCifarSplit(const Keys& keys, DataSplit split, CifarKind kind) {
  if (split == DataSplit::input) throwNoPredict("cifar");
  return openCifar({.folder = keys.folder,
                    .kind = kind,
                    .train = split == DataSplit::train,
                    .image = imageOf(keys),
                    .report = damageOf(keys, split)});
}

std::unique_ptr<Dataset> openCifar10(const Keys& keys, DataSplit split) {
  return openCifarSplit(keys, split, CifarKind::cifar10);
}

std::unique_ptr<Dataset> openCifar100(const Keys& keys, DataSplit split) {
  const bool isCoarse = keys.labels == "coarse";
  return openCifarSplit(keys, split,
                        isCoarse ? CifarKind::cifar100Coarse : CifarKind::cifar100Fine);
}

// ---- synthetic ----

Table makeSyntheticKeys() {
  Table table;
  addClasses(table);
  table.add(
      "data.shape", "list of integers, 1 … 65536", "", "required", "shape of a sample",
      [](Config& config, Keys& keys) { keys.shape = config.integers("data.shape", 1, 1 << 16); });
  table.number("data.noise", "", 0, 1e3, &Keys::noise,
               "std of the noise added to the pattern of the class");
  table.integer("data.train.size", "samples", 1, kMany, &Keys::trainSize,
                "size of the training set");
  table.integer("data.test.size", "samples", 1, kMany, &Keys::testSize, "size of the test set");
  return table;
}

std::unique_ptr<Dataset> openSynthetic(const Keys& keys, DataSplit split) {
  if (split == DataSplit::input) throwNoPredict("synthetic");
  const bool isTrain = split == DataSplit::train;
  SyntheticOptions options;
  options.classes = keys.classes;
  options.shape = keys.shape;
  options.noise = keys.noise;
  options.seed = keys.dataSeed;
  options.size = isTrain ? keys.trainSize : keys.testSize;
  options.split = isTrain ? 0 : 1;
  return makeSynthetic(options);
}

// ---- tensors ----

Table makeTensorsKeys() {
  Table table;
  addFiles(table);
  table.text("data.target", "text", &Keys::target,
             "array that the loss compares the output with; may be an input too");
  table.add("data.classes", integerType(2, 1 << 20), "", "none",
            "number of classes, if the target is a class; required for models other than `graph`",
            [](Config& config, Keys& keys) {
              keys.classes = 0;
              if (config.has("data.classes"))
                keys.classes = static_cast<int>(config.integer("data.classes", 2, 1 << 20));
            });
  return table;
}

std::unique_ptr<Dataset> openTensorsSplit(const Keys& keys, DataSplit split) {
  if (split == DataSplit::input) {
    return openTensors({.file = onlyInput(keys),
                        .target = keys.target,
                        .classes = keys.classes,
                        .learned = keys.learned});
  }
  const std::filesystem::path train(keys.trainFile), test(keys.testFile);
  std::error_code ignored;
  if (std::filesystem::is_directory(train, ignored) &&
      (train == test || std::filesystem::equivalent(train, test.parent_path(), ignored))) {
    throw UsageError("data-overlap",
                     "the test set " + keys.testFile + " is in the folder of the training set, " +
                         keys.trainFile + ", and training uses all files in that folder",
                     "set data.train.file to the file of the training set");
  }
  TensorsOptions options;
  options.file = fileOf(keys, split);
  options.target = keys.target;
  options.classes = keys.classes;
  options.ignoredLabel = keys.ignoredLabel;
  options.report = damageOf(keys, split);
  return openTensors(options);
}

constexpr DataFormatRow kFormats[] = {
    {"idx", "IDX images and labels, such as MNIST and Fashion-MNIST, plain or gzip",
     made<makeIdxKeys>, openIdxSplit},
    {"cifar10", "the binary files of CIFAR-10", made<makeCifar10Keys>, openCifar10},
    {"cifar100", "the binary files of CIFAR-100, with its 100 fine or 20 coarse classes",
     made<makeCifar100Keys>, openCifar100},
    {"synthetic", "learnable data generated from a seed", made<makeSyntheticKeys>, openSynthetic},
    {"tensors", "named arrays in safetensors files, such as tokenized text", made<makeTensorsKeys>,
     openTensorsSplit},
    {"text", "texts in CSV, TSV or plain files, tokenized with a tokenizer.json",
     made<makeTextKeys>, openTextSplit},
    {"csv", "tables in CSV or TSV files: columns of numbers and of categories", made<makeCsvKeys>,
     openCsvSplit},
    {"folder", "JPEG, PNG and WebP files in a folder per class", made<makeFolderKeys>, openFolder,
     true},
    {"list", "image files and their labels, listed in a CSV or TSV file", made<makeListKeys>,
     openList, true},
    {"tar", "image files and their labels in tar files, as WebDataset writes them",
     made<makeTarKeys>, openTar, true},
};

}  // namespace

std::span<const DataFormatRow> dataFormatTable() { return kFormats; }

std::string keyOfPath(const DataFormatKeys& keys, std::string_view sentence) {
  constexpr std::pair<const char*, std::string Keys::*> kPaths[] = {
      {"data.train.images", &Keys::trainImages},
      {"data.train.labels", &Keys::trainLabels},
      {"data.test.images", &Keys::testImages},
      {"data.test.labels", &Keys::testLabels},
      {"data.train.file", &Keys::trainFile},
      {"data.test.file", &Keys::testFile},
      {"data.train.folder", &Keys::trainFolder},
      {"data.test.folder", &Keys::testFolder},
      {"data.folder", &Keys::folder},
      {"data.tokenizer", &Keys::tokenizer}};
  std::string found;
  std::size_t longest = 0;
  for (const auto& [key, path] : kPaths) {
    const std::string& value = keys.*path;
    if (value.size() <= longest || !sentence.starts_with(value)) continue;
    longest = value.size();
    found = key;
  }
  return found;
}

std::string pathOf(const DataFormatKeys& keys, DataSplit split) {
  const bool isTraining = split == DataSplit::train;
  for (const std::string& path : {isTraining ? keys.trainFile : keys.testFile,
                                  isTraining ? keys.trainFolder : keys.testFolder,
                                  isTraining ? keys.trainImages : keys.testImages, keys.folder}) {
    if (!path.empty()) return path;
  }
  return "";
}

const DataFormatRow& findDataFormat(std::string_view name) {
  return findByName(dataFormatTable(), name, "unknown-data-format", "a data format");
}

std::vector<KeyText> dataFormatKeys() {
  // The texts of a key that differ between formats, each with its formats.
  class Texts {
   public:
    void add(const std::string& text, std::string_view format) {
      auto same = std::find_if(rows_.begin(), rows_.end(),
                               [&](const auto& row) { return row.first == text; });
      if (same == rows_.end()) same = rows_.insert(rows_.end(), {text, ""});
      same->second += fmt::format("{}`{}`", same->second.empty() ? "" : ", ", format);
    }
    bool isSingle() const { return rows_.size() == 1; }
    // "`idx`, `synthetic`: TEXT; `tensors`: TEXT"
    std::string joined() const {
      std::string all;
      for (const auto& [text, formats] : rows_)
        all += fmt::format("{}{}: {}", all.empty() ? "" : "; ", formats, text);
      return all;
    }

   private:
    std::vector<std::pair<std::string, std::string>> rows_;  // text, formats
  };
  std::vector<KeyText> all;
  std::map<std::string, Texts> meanings, defaults;  // by key name
  for (const DataFormatRow& row : dataFormatTable()) {
    for (const KeyText& key : row.keys().texts()) {
      if (!meanings.contains(key.name)) all.push_back(key);
      meanings[key.name].add(key.meaning, row.name);
      defaults[key.name].add(key.defaultValue, row.name);
    }
  }
  for (KeyText& key : all) {
    key.meaning = meanings[key.name].joined();
    if (!defaults[key.name].isSingle()) key.defaultValue = defaults[key.name].joined();
  }
  return all;
}

}  // namespace cleave
