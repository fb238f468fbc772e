// Datasets whose samples are encoded images, decoded when they are read. The formats folder, list
// and tar share this code. No Torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "client/data/formats/format_keys.h"
#include "client/data/pictures/other_pictures.h"
#include "client/data/samples/data_digest.h"
#include "client/data/samples/labels.h"

namespace cleave {

// Adds data.channels and the keys of ImageOptions.
void addEncodedImageKeys(DataFormatTable& table);

struct ClassTable {
  std::vector<std::string> names;                             // by class number
  std::map<std::string, std::uint32_t, std::less<>> numbers;  // the class number of each label
};
// The training set's classes are its labels, sorted by name. Other splits use the training set's
// classes and their numbers, from `keys.learned`. `where` names the set in errors. Throws
// UsageError: a single class ("too-few-classes"), a class that the training set lacks
// ("unknown-class"), a name that cannot be printed ("data-damaged").
ClassTable tabulateClasses(const std::set<std::string>& labels, const DataFormatKeys& keys,
                           DataSplit split, const std::string& where);

// learnedClasses() makes the value that learned() returns; classNamesOf() reads the names from
// `keys.learned`.
nlohmann::json learnedClasses(const std::vector<std::string>& names);
std::vector<std::string> classNamesOf(const DataFormatKeys& keys);

struct EncodedImages {
  std::vector<std::string> names;     // per sample
  std::string folder;                 // a beginning of the names that does not identify a sample
  std::vector<std::uint32_t> labels;  // per sample, below classNames.size()
  std::vector<std::string> classNames;
  // Returns the content of a sample's image file. Throws UsageError "sample-damaged". Any thread.
  // Null: the files at the paths `names` are read.
  std::function<std::vector<std::byte>(std::uint32_t index)> read = nullptr;
  // Its number of bytes, and some of them, or fewer if they cannot be read. Null if `read` is null.
  std::function<std::uint64_t(std::uint32_t index)> size = nullptr;
  std::function<std::vector<std::byte>(std::uint32_t index, ContentPart part)> readPart = nullptr;
};
// For formats whose labels are texts in files. labelsOf() reads the training set's classes from
// `keys.learned`; useLabels() finishes the labels and gives them to the images.
Labels labelsOf(const DataFormatKeys& keys, DataSplit split);
void useLabels(EncodedImages& images, Labels& labels, const std::string& where);

// The transforms determine the shape of the samples. If the shape depends on the image's size, all
// images must have the size of the first readable image. The sizes of some are compared here, and
// all others when they are read: UsageError "sample-size".
std::unique_ptr<Dataset> makeEncodedImages(EncodedImages images, const DataFormatKeys& keys);

// Throws UsageError "sample-damaged" if the file cannot be read, or is larger than 1 GiB.
std::vector<std::byte> readImageFile(const std::string& path);
// Returns a part of a file; fewer bytes if they cannot be read.
std::vector<std::byte> readFilePart(const std::string& path, ContentPart part);

// Finds the images in a folder and its subfolders. The folder's own images come first, then each
// subfolder's, sorted by name. Hidden files and folders are ignored. Throws UsageError
// "data-missing".
struct FoundImages {
  std::vector<std::string> paths;  // relative to the folder
  SkippedFiles skipped;            // other files
};
FoundImages findImages(const std::string& folder);
// Logs a warning that names the skipped files by extension, if there are any. `folder`: see
// SkippedFiles::hint().
void warnOfSkipped(const std::string& where, const SkippedFiles& skipped,
                   const std::string& folder);
// Whether the extension is .jpg, .jpeg, .png or .webp, in upper or lower case.
bool hasImageExtension(std::string_view path);

// Opens the split `input`: image files, and folders of them.
std::unique_ptr<Dataset> openInputImages(const DataFormatKeys& keys);

// Throws UsageError "config-missing": there is no test set; the hint suggests setting `key`.
[[noreturn]] void throwNoTestSet(const std::string& key);
// Shuffles the samples: see holdoutOrder().
void shuffleForHoldout(EncodedImages& images);

}  // namespace cleave
