#include "client/start/found_data.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string_view>

#include "client/data/files/cells.h"
#include "client/data/files/csv_file.h"
#include "client/data/formats/encoded_images.h"
#include "client/start/found_table.h"
#include "common/core/error.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

using Names = std::map<std::string, std::string>;  // in lower case -> as written

constexpr std::string_view kTrainNames[] = {"train", "training"};
// A validation set comes first: it chooses the best epoch, and the test set remains unseen.
constexpr std::string_view kTestNames[] = {"val",  "valid", "validation", "dev",
                                           "eval", "test",  "testing"};

// The visible files and folders in a folder.
struct Listing {
  fs::path folder;
  Names files, folders;

  // The path of the first of these files; empty: none.
  std::string file(std::span<const std::string> names) const {
    for (const std::string& name : names) {
      if (const auto found = files.find(name); found != files.end()) return folder / found->second;
    }
    return "";
  }
  std::string subfolder(std::span<const std::string_view> names) const {
    for (const std::string_view name : names) {
      const auto found = folders.find(std::string(name));
      if (found != folders.end()) return folder / found->second;
    }
    return "";
  }
  bool hasFile(std::string_view extension) const {
    return std::any_of(files.begin(), files.end(),
                       [&](const auto& each) { return each.first.ends_with(extension); });
  }
};

Listing list(const fs::path& folder) {
  Listing listing{folder, {}, {}};
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with('.')) continue;
    std::error_code ignored;
    (entry.is_directory(ignored) ? listing.folders : listing.files)[lowerCase(name)] = name;
  }
  if (error) {
    throw DataMissing(folder.string() + " cannot be read: " + error.message(),
                      "check the path and its permissions");
  }
  return listing;
}

// The file that belongs to another one's split: test.csv beside train.csv. `file` must have the
// name of a training set.
std::string besideTrain(const fs::path& file) {
  const std::string name = lowerCase(file.filename());
  const Listing listing = list(file.has_parent_path() ? file.parent_path() : ".");
  for (const std::string_view train : kTrainNames) {
    if (!name.starts_with(train)) continue;
    for (const std::string_view test : kTestNames) {
      const auto found = listing.files.find(std::string(test) + name.substr(train.size()));
      if (found != listing.files.end()) return file.parent_path() / found->second;
    }
  }
  return "";
}

// ---- Files ----

bool hasExtension(const std::string& path, std::string_view extension) {
  return lowerCase(path).ends_with(extension);
}

void addTest(FoundData& found, const std::string& key, const std::string& path) {
  if (path.empty()) return;
  found.hasTest = true;
  found.keys.emplace_back(key, path);
}

FoundData foundFile(const std::string& path, const std::string& label) {
  FoundData found;
  if (isTablePath(lowerCase(path))) {
    found = foundTable(path, label);
  } else if (hasExtension(path, ".tar")) {
    found = {"tar", {{"train.file", path}}, "an archive of images and their classes"};
  } else if (hasExtension(path, ".safetensors")) {
    found = {"tensors", {{"train.file", path}}, "arrays in a safetensors file"};
  } else if (hasExtension(path, ".txt")) {
    const std::string tokenizer = fs::path(path).parent_path() / "tokenizer.json";
    found = {"text",
             {{"train.file", path}, {"tokenizer", tokenizer}},
             "a text whose next token is predicted"};
  } else if (hasExtension(path, ".npy")) {
    throwUnknownData(path + " is a single array, but samples need inputs and labels",
                     "give the folder of the arrays, such as x.npy and labels.npy");
  } else {
    throwUnknownData(
        "the data format of " + path + " is not known",
        "give a folder, or a .csv, .tsv, .tar, .safetensors or .txt file; docs/data.md "
        "describes all formats");
  }
  addTest(found, "test.file", besideTrain(path));
  return found;
}

// ---- Folders ----

std::optional<FoundData> foundCifar(const Listing& listing) {
  const auto has = [&](const std::string& name) {
    return listing.files.contains(name) || listing.files.contains(name + ".gz");
  };
  for (const auto& [format, name] :
       {std::pair{"cifar10", "data_batch_1.bin"}, std::pair{"cifar100", "train.bin"}}) {
    if (!has(name)) continue;
    FoundData found{format, {{"folder", listing.folder}}, "the binary files of CIFAR"};
    found.hasTest = true;
    return found;
  }
  return std::nullopt;
}

std::optional<FoundData> foundIdx(const Listing& listing) {
  const auto find = [&](const std::string& split, const std::string& kind) {
    std::vector<std::string> names;
    for (const std::string separator : {"-", "."}) {
      const std::string name =
          split + kind.substr(0, kind.find('-')) + separator + kind.substr(kind.find('-') + 1);
      names.insert(names.end(), {name, name + ".gz"});
    }
    return listing.file(names);
  };
  const std::string images = find("train-", "images-idx3-ubyte");
  const std::string labels = find("train-", "labels-idx1-ubyte");
  if (images.empty() || labels.empty()) return std::nullopt;
  FoundData found{"idx", {{"train.images", images}, {"train.labels", labels}}, "IDX files"};
  addTest(found, "test.images", find("t10k-", "images-idx3-ubyte"));
  addTest(found, "test.labels", find("t10k-", "labels-idx1-ubyte"));
  return found;
}

// A file train.csv, train.tar and so on, or the only table.
std::optional<FoundData> foundFileIn(const Listing& listing, const std::string& label) {
  std::vector<std::string> names;
  for (const std::string extension :
       {".csv", ".tsv", ".csv.gz", ".tsv.gz", ".safetensors", ".tar", ".txt"}) {
    for (const std::string_view train : kTrainNames)
      names.push_back(std::string(train) + extension);
  }
  if (const std::string path = listing.file(names); !path.empty()) return foundFile(path, label);
  std::vector<std::string> tables;
  for (const auto& [lower, name] : listing.files) {
    if (isTablePath(lower)) tables.push_back(listing.folder / name);
  }
  if (tables.size() == 1) return foundFile(tables.front(), label);
  return std::nullopt;
}

// The format of a folder that is one split.
std::optional<FoundData> foundSplit(const Listing& listing) {
  if (listing.hasFile(".tar")) {
    return FoundData{
        "tar", {{"train.file", listing.folder}}, "archives of images and their classes"};
  }
  if (listing.hasFile(".npy") || listing.hasFile(".safetensors")) {
    return FoundData{"tensors", {{"train.file", listing.folder}}, "a file per array"};
  }
  const bool hasImages = std::any_of(
      listing.folders.begin(), listing.folders.end(),
      [&](const auto& each) { return !findImages(listing.folder / each.second).paths.empty(); });
  if (hasImages) {
    return FoundData{"folder", {{"train.folder", listing.folder}}, "a folder of images per class"};
  }
  return std::nullopt;
}

std::optional<FoundData> foundSplits(const Listing& listing) {
  const std::string train = listing.subfolder(kTrainNames);
  if (train.empty()) return std::nullopt;
  std::optional<FoundData> found = foundSplit(list(train));
  if (!found) return std::nullopt;
  const std::string test = listing.subfolder(kTestNames);
  addTest(*found, found->format == "folder" ? "test.folder" : "test.file", test);
  constexpr std::string_view kTest[] = {"test", "testing"};
  if (const std::string unused = listing.subfolder(kTest); unused != test) {
    found->unusedTest = unused;
  }
  return found;
}

FoundData foundFolder(const fs::path& folder, const std::string& label) {
  const Listing listing = list(folder);
  for (const auto find : {foundCifar, foundIdx, foundSplits}) {
    if (const auto found = find(listing)) return *found;
  }
  if (const auto found = foundFileIn(listing, label)) return *found;
  if (const auto found = foundSplit(listing)) return *found;
  const FoundImages images = findImages(folder);
  if (!images.paths.empty()) {
    throwUnknownData(
        folder.string() + " has images, but no folder per class",
        "move each image into a folder with the name of its class, or write a table of "
        "them: docs/data.md#lists-of-images");
  }
  throwUnknownData(folder.string() + " has no data of a known format" +
                       (images.skipped.isEmpty() ? "" : ", only " + images.skipped.text()),
                   images.skipped.hasPictures() ? images.skipped.hint(folder)
                                                : "docs/data.md describes all formats");
}

// Without a slash at the end and "./" at the beginning.
fs::path tidied(const std::string& path) {
  fs::path tidy = fs::path(path).lexically_normal();
  return tidy.has_filename() ? tidy : tidy.parent_path();
}

}  // namespace

std::string FoundData::value(const std::string& key) const {
  for (const auto& [each, value] : keys) {
    if (each == key) return value;
  }
  return "";
}

FoundData findData(const std::string& path, const std::string& label) {
  const fs::path tidy = tidied(path);
  std::error_code error;
  if (!fs::exists(tidy, error)) {
    throw DataMissing(
        path + " cannot be read: " +
            (error ? error.message() : std::string("there is no such file or folder")),
        "correct the path after --data");
  }
  return fs::is_directory(tidy, error) ? foundFolder(tidy, label) : foundFile(tidy, label);
}

}  // namespace cleave
