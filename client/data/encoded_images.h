// Datasets whose samples are encoded images, each decoded when it is read. The formats folder, list
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

#include "client/data/format_keys.h"

namespace cleave {

// data.channels and the keys of ImageOptions.
void addEncodedImageKeys(DataFormatTable& table);

// The classes of a set, by number, and the number of each label that occurs.
struct ClassTable {
  std::vector<std::string> names;
  std::map<std::string, std::uint32_t, std::less<>> numbers;
};
enum class ClassOrder : std::uint8_t {
  byName,    // class i is the i-th name
  byNumber,  // the same; but if all labels are numbers, label i is class i
};
// The training set's classes are its labels. Other splits use the training set's classes and their
// numbers, from `keys.learned`. `where` names the set in errors. Throws UsageError: a single class
// ("too-few-classes"), a class that the training set lacks ("unknown-class"), a name that cannot be
// printed ("data-damaged").
ClassTable tabulateClasses(const std::set<std::string>& labels, const DataFormatKeys& keys,
                           DataSplit split, ClassOrder order, const std::string& where);

// learnedClasses() makes the value that learned() returns; classNamesOf() reads the names from
// `keys.learned`.
nlohmann::json learnedClasses(const std::vector<std::string>& names);
std::vector<std::string> classNamesOf(const DataFormatKeys& keys);

struct EncodedImages {
  std::vector<std::string> names;     // of the samples
  std::vector<std::uint32_t> labels;  // by sample, below classNames.size()
  std::vector<std::string> classNames;
  // Returns the content of a sample's image file. Throws UsageError "sample-damaged". Any thread.
  // Empty: `names` are the paths of the files.
  std::function<std::vector<std::byte>(std::uint32_t index)> read = nullptr;
};
// The transforms determine the shape of the samples. If it depends on the size of the image, all
// images must have the size of the first readable one; reading an image of another size throws
// UsageError "sample-size".
std::unique_ptr<Dataset> makeEncodedImages(EncodedImages images, const DataFormatKeys& keys);

// Throws UsageError "sample-damaged" if the file cannot be read, or has more than 1 GiB.
std::vector<std::byte> readImageFile(const std::string& path);

// The images in a folder and its subfolders, as paths relative to it: first those of the folder
// itself, then those of each subfolder, sorted by name. Hidden files and folders are skipped.
// Throws UsageError "data-missing".
struct FoundImages {
  std::vector<std::string> paths;
  std::size_t others = 0;  // other files
  std::string firstOther;
};
FoundImages findImages(const std::string& folder);
// .jpg, .jpeg, .png or .webp, in any case.
bool hasImageExtension(std::string_view path);

// Opens the split `input`: image files, and folders of them.
std::unique_ptr<Dataset> openInputImages(const DataFormatKeys& keys);

// Throws UsageError "config-missing": the data has no test set, and `key` could name one.
[[noreturn]] void throwNoTestSet(const std::string& key);
// A fixed random order of the samples, so that the last ones are a random selection. For training
// sets without a test set, whose last samples are held out (data.holdout).
void shuffleForHoldout(EncodedImages& images);

}  // namespace cleave
