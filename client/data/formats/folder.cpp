// The data format `folder`: one folder per class, with images in it or in its subfolders.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "client/data/formats/encoded_images.h"
#include "client/data/formats/image_formats.h"
#include "common/core/printable.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

// The class of an image at this path below the folder; empty if the image is not in a class folder.
std::string classFolder(const std::string& path) {
  const std::size_t slash = path.find('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

// Whether the class folders are really splits, such as train and test, as in many archives.
bool areSplits(const std::set<std::string>& folders) {
  const std::set<std::string> splits = {"test", "train", "training", "val", "valid", "validation"};
  return folders.contains("train") &&
         std::includes(splits.begin(), splits.end(), folders.begin(), folders.end());
}

void checkIsFolder(const std::string& folder, const std::string& key) {
  std::error_code ignored;
  if (fs::is_directory(folder, ignored)) return;
  throw DataMissing(
      fmt::format("{} cannot be read: {}", folder,
                  fs::exists(folder, ignored) ? "it is not a folder" : "there is no such folder"),
      "set " + key + " to a folder with one folder of images per class");
}

bool isBelow(const fs::path& path, const fs::path& folder) {
  const auto [end, ignored] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return end == folder.end();
}

// Throws if both sets have the same folder, or one set's folder is inside the other's.
void checkAreApart(const DataFormatKeys& keys) {
  std::error_code error;
  const fs::path train = fs::canonical(keys.trainFolder, error);
  const fs::path test = fs::canonical(keys.testFolder, error);
  if (error || (!isBelow(test, train) && !isBelow(train, test))) return;
  throw UsageError(
      "data-overlap",
      train == test
          ? "the training set and the test set are the same folder, " + keys.trainFolder
          : fmt::format(
                "one of these folders is inside the other: {} (training set) and {} (test set)",
                keys.trainFolder, keys.testFolder),
      "use two folders next to each other, such as data/train and data/test");
}

[[noreturn]] void throwNoImages(const std::string& sentence, const std::string& folder,
                                const SkippedFiles& skipped, const std::string& hint) {
  throw DataError("data-empty",
                  sentence + (skipped.isEmpty() ? "" : ", only other files: " + skipped.text()),
                  skipped.hasPictures() ? skipped.hint(folder) : hint);
}

// Removes the images directly in the folder, which come first. They are reported, or an error.
void takeMisplaced(const std::string& folder, FoundImages& found, const DamageReport& report) {
  const auto end = std::find_if(found.paths.begin(), found.paths.end(),
                                [](const std::string& path) { return !classFolder(path).empty(); });
  const auto count = static_cast<std::size_t>(end - found.paths.begin());
  for (auto path = found.paths.begin(); path != end; ++path) {
    const std::string image = printable((fs::path(folder) / *path).string());
    const std::string hint = "move each image into a folder with the name of its class, such as " +
                             folder + "/CLASS/" + printable(*path);
    if (!report) {
      throw DataError(
          "data-damaged",
          fmt::format("{} has {} not in the folder of a class: {}{}", folder,
                      count == 1 ? "an image that is" : std::to_string(count) + " images that are",
                      printable(*path), count == 1 ? "" : ", …"),
          hint);
    }
    report(image, DataError("data-damaged", image + " is not in the folder of a class", hint));
  }
  found.paths.erase(found.paths.begin(), end);
}

// Throws, or reports each one, if there are class folders without images.
void checkHaveImages(const std::string& folder, const std::set<std::string>& classes,
                     const DamageReport& report) {
  std::vector<fs::path> empty;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    std::error_code ignored;
    if (!name.starts_with('.') && entry.is_directory(ignored) && !classes.contains(name))
      empty.push_back(entry.path());
  }
  std::sort(empty.begin(), empty.end());
  for (const fs::path& path : empty) {
    orReport(report, printable(path.string()), [&] {
      throwNoImages(printable(path.string()) + " has no images", path, findImages(path).skipped,
                    "add JPEG, PNG or WebP files to the folder, or remove it");
    });
  }
}

// The images of the class folders.
FoundImages imagesByClass(const std::string& folder, const DamageReport& report) {
  FoundImages found = findImages(folder);
  const std::string hint = "put JPEG, PNG or WebP files into one folder per class";
  if (found.paths.empty()) throwNoImages(folder + " has no images", folder, found.skipped, hint);
  takeMisplaced(folder, found, report);
  if (found.paths.empty())
    throwNoImages(folder + " has no folder of a class", folder, found.skipped, hint);
  return found;
}

// Reports the test set's class folders that the training set lacks, and removes their images.
void takeUnknownClasses(const std::string& folder, const std::vector<std::string>& known,
                        FoundImages& found, std::set<std::string>& labels,
                        const DamageReport& report) {
  const auto isKnown = [&](const std::string& name) {
    return std::find(known.begin(), known.end(), name) != known.end();
  };
  for (const std::string& label : labels) {
    if (isKnown(label)) continue;
    const std::string path = printable((fs::path(folder) / label).string());
    report(path, DataError("unknown-class", path + " is a class that the training set lacks",
                           "rename the folder to a class of the training set, or remove it"));
  }
  std::erase_if(labels, [&](const std::string& label) { return !isKnown(label); });
  std::erase_if(found.paths, [&](const std::string& path) { return !isKnown(classFolder(path)); });
}

}  // namespace

DataFormatTable makeFolderKeys() {
  DataFormatTable table;
  table.requiredText("data.train.folder", "path", &DataFormatKeys::trainFolder,
                     "folder with one subfolder per class; the subfolders contain .jpg, .jpeg, "
                     ".png and .webp files");
  table.text("data.test.folder", "path", &DataFormatKeys::testFolder,
             "the same for the test set; not needed with `data.holdout`");
  addEncodedImageKeys(table);
  return table;
}

std::unique_ptr<Dataset> openFolder(const DataFormatKeys& keys, DataSplit split) {
  if (split == DataSplit::input) return openInputImages(keys);
  const bool isTraining = split == DataSplit::train;
  const std::string key = isTraining ? "data.train.folder" : "data.test.folder";
  const std::string& folder = isTraining ? keys.trainFolder : keys.testFolder;
  if (folder.empty()) throwNoTestSet(key);
  checkIsFolder(folder, key);
  checkAreApart(keys);

  const DamageReport report = damageOf(keys, split);
  FoundImages found = imagesByClass(folder, report);
  std::set<std::string> labels;
  for (const std::string& path : found.paths) labels.insert(classFolder(path));
  if (isTraining) {
    checkHaveImages(folder, labels, report);
    if (areSplits(labels)) {
      throw DataError("data-damaged", folder + " has a folder named train, which would be a class",
                      fmt::format("set {} to {}/train", key, folder));
    }
  } else if (report) {
    takeUnknownClasses(folder, classNamesOf(keys), found, labels, report);
  }
  warnOfSkipped(folder, found.skipped, folder);
  const ClassTable classes = tabulateClasses(labels, keys, split, folder);

  EncodedImages images;
  images.classNames = classes.names;
  images.folder = folder;
  images.names.reserve(found.paths.size());
  for (const std::string& path : found.paths) {
    images.labels.push_back(classes.numbers.find(classFolder(path))->second);
    images.names.push_back(fs::path(folder) / path);
  }
  if (isTraining && keys.isShuffled) shuffleForHoldout(images);
  return makeEncodedImages(std::move(images), keys);
}

}  // namespace cleave
